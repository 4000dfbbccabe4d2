"""
Every Lua text, each under a name: one script for each method of a `Remote` (SPEC B2, promise A6).

A script runs alone on its server, so each is atomic; what it has written before an error it does not take back, so each
looks at every key before its first write, where a key of another type ends it. What is not the method's answer comes as
a word: `schema`, `layout`, `unlaid`, `foreign`, `damaged`, `stale`, `full`. Every answer begins with the nonce of its
request.

They are sent as EVALSHA and not as functions. A function belongs to the server, which many versions of this library may
share, and wants rights of its own; a text that is named by its digest can only be the one that was meant, and where a
server does not know it, after a restart or a failover, it comes along once more. `no-writes` lets a full server answer
reads. A write without flags is refused as a whole by a server that is full, only reads or cannot write its disk; one
that grows nothing is `allow-oom`, so that a full server can still be made emptier.

KEYS are always the first ones of these, all in one slot:

    meta    hash    the bucket: schema, number of buckets, payload bytes
    heads   hash    id -> payload bytes (8 bytes), stamp (16 bytes), packed header
    index   zset    ids, all of score 0: in the order of their bytes, which is that of their code points
    idle    zset    ids of the unreserved, by the time of their last write
    log     hash    one conversation: id, stamp, newest, cut; e<seq> -> messages, size (8 bytes each), packed entry;
                    v<version> -> packed receipt; r<idempotency id> -> version; while a large write is staged, staging,
                    staged

A write of many entries is staged in slices: each puts some into the log above `newest`, where nobody reads, and the
write itself takes the last of them and changes the header. `staging` is a word that each slice changes and the next one
has to know, so that what others staged, or a failover lost, is never gone on from; `staged` is the newest entry that
came so. Where there is no header yet the log so begun has an hour to live; with one, what a stager left behind is taken
away by later writes, some by each.

ARGV are the request's nonce, the number of buckets, and what the script `takes` and `holds`, by its names. What it
holds is content, ids among it, and stands behind the 32nd argument of the command: a server's SLOWLOG keeps no more of
one that is slow (promise I-37). What a script calls is logged for itself, where that alone is slow.

Numbers are doubles here, exact to 2**53: enough for bytes, milliseconds and numbers of entries.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

import msgspec

from minutebook.model.shown import type_alone

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SCHEMA: Final = 1
"""The version of what is written above."""


STAGED_MS: Final = 3_600_000
"""How long what was staged of a conversation that is not there yet stays, from its last slice on."""

SWEPT: Final = 1_000
"""How many entries that a stager left a write takes away at most."""

_TAKEN: Final = 3
_HELD: Final = 29
"""The number of the first argument of each kind; 32 of a command come before the second, KEYS at their fewest."""


class Script(msgspec.Struct, frozen=True):
    """A Lua text, what the server calls it, and what it is given."""

    text: str
    sha: str
    keys: int
    """How many KEYS it takes."""
    writes: bool
    """Whether it changes what a reader can see."""
    takes: tuple[str, ...]
    """The names of its numbers, stamps and words."""
    holds: tuple[str, ...]
    """The names of its content."""

    __repr__ = type_alone

    def arguments(self, buckets: int, given: Mapping[str, object], rest: Iterable[object] = ()) -> list[object]:
        """Return what stands behind the nonce in ARGV: what is given by name, and whatever follows."""
        taken = [given[name] for name in self.takes]
        unused = [b""] * (_HELD - _TAKEN - len(taken))
        return [buckets, *taken, *unused, *(given[name] for name in self.holds), *rest]


CLOCK: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""

_ROLE = """
if not string.find(redis.call('INFO', 'replication'), 'role:master', 1, true) then
  return {ARGV[1], 'replica', now}
end
"""

_BUCKET = f"""
local nonce, buckets = ARGV[1], ARGV[2]
local meta = redis.call('HMGET', KEYS[1], 'schema', 'buckets', 'bytes')
if meta[1] then
  if meta[1] ~= '{SCHEMA}' then return {{nonce, 'schema', now, tonumber(meta[1]) or 0}} end
  if meta[2] ~= buckets then return {{nonce, 'layout', now, tonumber(meta[2]) or 0}} end
elseif redis.call('EXISTS', KEYS[1]) == 1 then
  return {{nonce, 'foreign', now}}
end
"""

# Of 64 buckets one that has nothing may be new, or its server has lost all: the first one tells.
_CONVERSATION = """
if not meta[1] and buckets ~= '1' and begins ~= '1' then return {nonce, 'unlaid', now} end
local head = redis.call('HGET', KEYS[2], id)
local stamp = head and string.sub(head, 9, 24) or ''
local log = redis.call('HMGET', KEYS[5], 'stamp', 'newest', 'cut', 'id', 'staging', 'staged')
local indexed, free = redis.call('ZSCORE', KEYS[3], id), redis.call('ZSCORE', KEYS[4], id)
if log[4] ~= id and not head and redis.call('EXISTS', KEYS[5]) == 1 then return {nonce, 'foreign', now} end
local damaged
if head then damaged = log[1] ~= stamp or log[4] ~= id
else damaged = indexed or free or (log[4] and not log[5]) end
local newest, cut = tonumber(log[2] or 0) or 0, tonumber(log[3] or 0) or 0
"""

_SOUND = """
if damaged then return {nonce, 'damaged', now} end
"""

_PAGE = """
local function page(from, to, step, rows, messages, size)
  local found = {}
  for seq = from, to, step do
    if rows <= 0 or messages < 0 or size < 0 then break end
    local entry = redis.call('HGET', KEYS[5], string.format('e%.0f', seq)) or ''
    if #entry >= 16 then
      local counted, long = struct.unpack('>I8I8', entry)
      messages, size = messages - counted, size - long
    end
    found[#found + 1] = entry
    rows = rows - 1
  end
  return found
end
"""

_RECEIPT = """
local function receipt(name)
  local version = head and name ~= '' and redis.call('HGET', KEYS[5], 'r' .. name)
  if not version then return '' end
  local found = redis.call('HGET', KEYS[5], 'v' .. version)
  damaged = damaged or not found
  return found or ''
end
"""

_LOOK = """
local found = receipt(name)
return {nonce, 'ok', now, head or '', found, damaged and 1 or 0}
"""

_READ = """
local from, to = math.max(tonumber(first), cut + 1), math.min(tonumber(last), newest)
rows, messages, size = tonumber(rows), tonumber(messages), tonumber(size)
if newest_first == '1' then
  return {nonce, 'ok', now, head or '', to, page(to, from, -1, rows, messages, size)}
end
return {nonce, 'ok', now, head or '', from, page(from, to, 1, rows, messages, size)}
"""

_RECEIPTS = """
local found, version = {}, tonumber(after)
for _ = 1, head and tonumber(rows) or 0 do
  version = version + 1
  local one = redis.call('HGET', KEYS[5], string.format('v%.0f', version))
  if not one then break end
  found[#found + 1] = one
end
return {nonce, 'ok', now, head or '', found}
"""

# A size beyond `most` is none: the part of a whole that was counted before.
_RECOUNT = """
local function recount(most)
  local sum = 0
  for _, value in ipairs(redis.call('HVALS', KEYS[2])) do
    local size = #value >= 24 and struct.unpack('>I8', value) or 0
    if size <= most then sum = sum + size end
  end
  return sum
end
"""

_JUDGE = """
grown = tonumber(grown)
local known = receipt(name)
damaged = damaged or (head and not indexed)
if damaged and removes ~= '1' then return {nonce, 'damaged', now} end
if stamp ~= expected or math.abs(now - tonumber(wall)) > tonumber(drift) or known ~= '' then
  return {nonce, 'stale', now, head or '', known}
end
local counted = tonumber(meta[3] or 0) or recount(math.huge)
local sessions, bytes = redis.call('ZCARD', KEYS[3]) + (head and 0 or 1), counted + (grown or 0)
if (not head and max_sessions ~= '' and sessions > tonumber(max_sessions))
  or (bytes > counted and max_bytes ~= '' and bytes > tonumber(max_bytes)) then
  return {nonce, 'full', now, head or '', sessions, bytes}
end
"""

_PUT = """
-- As few commands as may be: each is written to the append-only file, and sent to replicas, with its key.
local function put(fields)
  local function add(field, what)
    if #fields >= 2000 then
      redis.call('HSET', KEYS[5], unpack(fields))
      fields = {}
    end
    fields[#fields + 1] = field
    fields[#fields + 1] = what
  end
  local entries = REST + 3 * tonumber(receipts)
  for place = REST, entries - 1, 3 do
    add('v' .. ARGV[place + 1], ARGV[place + 2])
    add('r' .. ARGV[place], ARGV[place + 1])
  end
  for place = entries, #ARGV do add(string.format('e%.0f', after + 1 + place - entries), ARGV[place]) end
  redis.call('HSET', KEYS[5], unpack(fields))
  return after + 1 + #ARGV - entries
end
"""

_SWEEP = """
local function sweep(from, to)
  for first = from, to, 1000 do
    local names = {}
    for seq = first, math.min(first + 999, to) do names[#names + 1] = string.format('e%.0f', seq) end
    redis.call('HDEL', KEYS[5], unpack(names))
  end
end
"""

_STAGE = """
if stager ~= '' and log[5] ~= stager then return {nonce, 'taken', now} end
if stager == '' and not head then redis.call('UNLINK', KEYS[5]) end
local last = math.max(put({'id', id, 'staging', becomes}), head and tonumber(log[6] or 0) or 0)
redis.call('HSET', KEYS[5], 'staged', string.format('%.0f', last))
if not head then redis.call('PEXPIRE', KEYS[5], LIFE) end
return {nonce, 'ok', now}
""".replace("LIFE", f"{STAGED_MS}")

_UNSTAGE = """
if log[5] == stager and not head then redis.call('UNLINK', KEYS[5]) end
return {nonce, 'ok', now}
"""

_WRITE = """
if stager ~= '' and log[5] ~= stager then return {nonce, 'taken', now} end
if removes == '1' then
  if not head and not damaged then return {nonce, 'ok', now, newest, {}} end
  redis.call('UNLINK', KEYS[5])
  redis.call('HDEL', KEYS[2], id)
  redis.call('ZREM', KEYS[3], id)
  redis.call('ZREM', KEYS[4], id)
  if not grown then bytes = recount(counted) end
  redis.call('HSET', KEYS[1], 'bytes', string.format('%.0f', bytes))
  if buckets == '1' and redis.call('EXISTS', KEYS[3]) == 0 then redis.call('UNLINK', KEYS[1]) end
  return {nonce, 'ok', now, newest, {}}
end
local tail = page(newest, cut + 1, -1, tonumber(rows), tonumber(messages), tonumber(size))
redis.call('HSET', KEYS[1], 'schema', SCHEMA, 'buckets', buckets, 'bytes', string.format('%.0f', bytes))
redis.call('HSET', KEYS[2], id, value)
if not head then redis.call('ZADD', KEYS[3], 0, id) end
if idle == '' then redis.call('ZREM', KEYS[4], id) else redis.call('ZADD', KEYS[4], idle, id) end
if log[5] then
  if not head and stager == '' then redis.call('UNLINK', KEYS[5]) end
  redis.call('PERSIST', KEYS[5])
  redis.call('HDEL', KEYS[5], 'staging')
end
sweep(cut + 1, math.min(tonumber(gone), newest))
local receipt = name ~= '' and {'v' .. version, packed, 'r' .. name, version} or {}
put({'id', id, 'stamp', string.sub(value, 9, 24), 'newest', entries, 'cut', gone, unpack(receipt)})
if log[6] and head or stager ~= '' then
  local staged = tonumber(log[6]) or 0
  local sound = math.max(tonumber(entries), staged - SWEPT)
  sweep(sound + 1, staged)
  if sound == tonumber(entries) then
    redis.call('HDEL', KEYS[5], 'staged')
  else
    redis.call('HSET', KEYS[5], 'staged', string.format('%.0f', sound))
  end
end
return {nonce, 'ok', now, newest, tail}
""".replace("SCHEMA", f"'{SCHEMA}'").replace("SWEPT", f"{SWEPT}")

# Ids are taken by the thousand where they have to be looked at: many may have expired before one that has not.
_NAMES = """
local found, wanted, left = {}, 2 * tonumber(rows), tonumber(scanned)
local live = ttl ~= '' and now - tonumber(ttl) or nil
local done, share = 0, math.min(tonumber(rows), 1000)
while #found < wanted and left > 0 do
  local from = after == '' and '-' or '(' .. after
  local ids = redis.call('ZRANGEBYLEX', KEYS[3], from, '+', 'LIMIT', 0, share)
  if #ids == 0 then
    done = 1
    break
  end
  local touched = live and redis.call('ZMSCORE', KEYS[4], unpack(ids)) or {}
  for place, id in ipairs(ids) do
    after, left = id, left - 1
    if not (touched[place] and tonumber(touched[place]) < live) then
      found[#found + 1] = id
      found[#found + 1] = redis.call('HGET', KEYS[2], id) or ''
      if #found >= wanted then break end
    end
  end
  share = math.min(4 * share, 1000)
end
return {nonce, 'ok', now, done, after, found}
"""

# The expired are the first of all by their times, and what was written to in the future the last.
_STALE = """
local found, left, passed = {}, tonumber(rows), tonumber(seen)
local gone = redis.call('ZCOUNT', KEYS[4], '-inf', string.format('(%.0f', now - tonumber(ttl)))
local ahead = redis.call('ZCOUNT', KEYS[4], string.format('(%.0f', now), '+inf')
local function add(from, to)
  to = math.min(to, from + left)
  if to <= from then return end
  for _, id in ipairs(redis.call('ZRANGE', KEYS[4], string.format('%.0f', from), string.format('%.0f', to - 1))) do
    found[#found + 1] = id
    found[#found + 1] = redis.call('HGET', KEYS[2], id) or ''
    left = left - 1
  end
end
add(passed, gone)
local all = redis.call('ZCARD', KEYS[4])
add(all - ahead + math.max(passed - gone, 0), all)
return {nonce, 'ok', now, math.max(gone - passed, 0), found}
"""

# By their times the expired are the first ones, so that a slice is found by its place among them. One that is not in
# the index is no conversation; it is looked up there only where the two do not agree.
_TOTALS = """
local all, unheld = redis.call('ZCARD', KEYS[3]), redis.call('ZCARD', KEYS[4])
local bytes, gone, size, strays, ids = tonumber(meta[3] or 0) or recount(math.huge), 0, 0, 0, {}
if ttl ~= '' then
  gone = redis.call('ZCOUNT', KEYS[4], '-inf', string.format('(%.0f', now - tonumber(ttl)))
  local last = math.min(gone, seen + scanned) - 1
  if last >= tonumber(seen) then ids = redis.call('ZRANGE', KEYS[4], seen, string.format('%.0f', last)) end
end
local apart = redis.call('HLEN', KEYS[2]) ~= all
for first = 1, #ids, 1000 do
  for place, head in ipairs(redis.call('HMGET', KEYS[2], unpack(ids, first, math.min(first + 999, #ids)))) do
    if (apart or not head) and not redis.call('ZSCORE', KEYS[3], ids[first + place - 1]) then
      strays = strays + 1
    elseif head and #head >= 24 then
      size = size + struct.unpack('>I8', head)
    end
  end
end
return {nonce, 'ok', now, all, bytes, all - unheld, gone, size, strays, #ids}
"""

_LAYOUT = """
local meta = redis.call('HMGET', KEYS[1], 'schema', 'buckets')
if not meta[1] and redis.call('EXISTS', KEYS[1]) == 1 then return {ARGV[1], 'foreign', now} end
if meta[1] and meta[1] ~= 'SCHEMA' then return {ARGV[1], 'schema', now, tonumber(meta[1]) or 0} end
if meta[1] then return {ARGV[1], 'ok', now, tonumber(meta[2]) or -1} end
if makes ~= '1' then return {ARGV[1], 'ok', now, 0} end
redis.call('HSET', KEYS[1], 'schema', 'SCHEMA', 'buckets', ARGV[2], 'bytes', '0')
return {ARGV[1], 'ok', now, tonumber(ARGV[2])}
""".replace("SCHEMA", str(SCHEMA))


_READS = " flags=no-writes"
_EMPTIES = " flags=allow-oom"


def script(flags: str, keys: int, *parts: str, takes: str = "", holds: str = "", writes: bool = False) -> Script:
    """Return the script of these parts: the server's time comes first, and then what it is given under its names."""
    taken, held = tuple(takes.split()), tuple(holds.split())
    places = [*enumerate(taken, _TAKEN), *enumerate(held, _HELD)]
    names = "".join(f"local {name} = ARGV[{place}]\n" for place, name in places)
    rest = f"local REST = {_HELD + len(held)}\n"
    # A replica refuses a script that may write; of one that only reads this has to be asked.
    role = _ROLE if flags == _READS else ""
    text = "".join((f"#!lua{flags}\n", CLOCK, names, rest, role, *parts))
    # SHA-1 is the name that the server gives a script, and nothing else.
    sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    return Script(text, sha, keys, writes, taken, held)


_CHANGES = (_BUCKET, _CONVERSATION, _PAGE, _RECEIPT, _RECOUNT, _JUDGE, _PUT)
_JUDGED = "begins removes expected wall drift grown max_sessions max_bytes stager after receipts"
_WRITTEN = f"{_JUDGED} idle version entries gone rows messages size"

LOOK: Final = script(_READS, 5, _BUCKET, _CONVERSATION, _RECEIPT, _LOOK, takes="begins", holds="id name")
PAGE: Final = script(
    *(_READS, 5, _BUCKET, _CONVERSATION, _SOUND, _PAGE, _READ),
    takes="begins first last newest_first rows messages size",
    holds="id",
)
RECEIPTS: Final = script(_READS, 5, _BUCKET, _CONVERSATION, _SOUND, _RECEIPTS, takes="begins after rows", holds="id")
WRITE: Final = script("", 5, *_CHANGES, _SWEEP, _WRITE, takes=_WRITTEN, holds="id name value packed", writes=True)
"""A change that needs room."""
WRITE_WITHIN: Final = script(
    _EMPTIES, 5, *_CHANGES, _SWEEP, _WRITE, takes=_WRITTEN, holds="id name value packed", writes=True
)
"""A change that grows nothing: a full server takes it."""
STAGE: Final = script("", 5, *_CHANGES, _STAGE, takes=f"{_JUDGED} becomes", holds="id name")
"""A slice of what a change will bring."""
UNSTAGE: Final = script(_EMPTIES, 5, _BUCKET, _CONVERSATION, _UNSTAGE, takes="begins stager", holds="id")
"""Takes back what was staged of a conversation that is not there yet."""
NAMES: Final = script(_READS, 4, _BUCKET, _NAMES, takes="rows ttl scanned", holds="after")
STALE: Final = script(_READS, 4, _BUCKET, _STALE, takes="ttl rows seen")
TOTALS: Final = script(_READS, 4, _BUCKET, _RECOUNT, _TOTALS, takes="ttl seen scanned")
LAYOUT: Final = script("", 1, _LAYOUT, takes="makes")
"""How many buckets a namespace has; with `makes` one that has none gets as many as the second argument says."""
LAYOUT_SEEN: Final = script(_READS, 1, _LAYOUT, takes="makes")
