"""
Every Lua text, each under a name: one script for each method of a `Remote` (SPEC B2, promise A6).

A script runs alone on its server, so each is atomic; what it has written before an error it does not take back, so each
looks at every key before its first write, where a key of another type ends it. What is not the method's answer comes as
a word: `schema`, `layout`, `foreign`, `damaged`, `stale`, `full`. Every answer begins with the request's nonce.

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
                    v<version> -> packed receipt; r<idempotency id> -> version

Numbers are doubles here, exact to 2**53: enough for bytes, milliseconds and numbers of entries.
"""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from minutebook.model.shown import type_alone

SCHEMA: Final = 1
"""The version of what is written above."""


class Script(msgspec.Struct, frozen=True):
    """A Lua text and what the server calls it."""

    text: str
    sha: str
    keys: int
    """How many KEYS it takes."""

    __repr__ = type_alone


CLOCK: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
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

_CONVERSATION = """
local id = ARGV[3]
local head = redis.call('HGET', KEYS[2], id)
local stamp = head and string.sub(head, 9, 24) or ''
local log = redis.call('HMGET', KEYS[5], 'stamp', 'newest', 'cut', 'id')
if head then
  if log[1] ~= stamp or log[4] ~= id then return {nonce, 'damaged', now} end
elseif redis.call('EXISTS', KEYS[5]) == 1 then
  return {nonce, 'foreign', now}
end
local newest, cut = tonumber(log[2] or 0), tonumber(log[3] or 0)
"""

_PAGE = """
local function page(from, to, step, rows, messages, size)
  local found = {}
  for seq = from, to, step do
    if rows <= 0 or messages < 0 or size < 0 then break end
    local entry = redis.call('HGET', KEYS[5], string.format('e%.0f', seq)) or ''
    if entry ~= '' then
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
  local version = name ~= '' and redis.call('HGET', KEYS[5], 'r' .. name)
  return version and redis.call('HGET', KEYS[5], 'v' .. version) or ''
end
"""

_LOOK = """
return {nonce, 'ok', now, head or '', receipt(ARGV[4])}
"""

_READ = """
local first, last = math.max(tonumber(ARGV[4]), cut + 1), math.min(tonumber(ARGV[5]), newest)
local rows, messages, size = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
if ARGV[6] == '1' then
  return {nonce, 'ok', now, head or '', last, page(last, first, -1, rows, messages, size)}
end
return {nonce, 'ok', now, head or '', first, page(first, last, 1, rows, messages, size)}
"""

_RECEIPTS = """
local found, version = {}, tonumber(ARGV[4])
for _ = 1, tonumber(ARGV[5]) do
  version = version + 1
  local one = redis.call('HGET', KEYS[5], string.format('v%.0f', version))
  if not one then break end
  found[#found + 1] = one
end
return {nonce, 'ok', now, head or '', found}
"""

_WRITE = """
local value, idle, grown = ARGV[6], ARGV[7], tonumber(ARGV[8])
local name, version, after = ARGV[11], ARGV[12], tonumber(ARGV[14])
local indexed, free = redis.call('ZSCORE', KEYS[3], id), redis.call('ZSCORE', KEYS[4], id)
if (indexed and true or false) ~= (head and true or false) or (free and not head) then
  return {nonce, 'damaged', now}
end
if stamp ~= ARGV[4] or math.abs(now - tonumber(ARGV[5])) > tonumber(ARGV[19])
  or (name ~= '' and redis.call('HEXISTS', KEYS[5], 'r' .. name) == 1) then
  return {nonce, 'stale', now, head or '', receipt(name)}
end
local sessions, bytes = redis.call('ZCARD', KEYS[3]) + (head and 0 or 1), tonumber(meta[3] or 0) + grown
if (not head and ARGV[9] ~= '' and sessions > tonumber(ARGV[9]))
  or (grown > 0 and ARGV[10] ~= '' and bytes > tonumber(ARGV[10])) then
  return {nonce, 'full', now, head or '', sessions, bytes}
end
local tail = page(newest, cut + 1, -1, tonumber(ARGV[16]), tonumber(ARGV[17]), tonumber(ARGV[18]))
local answer = {nonce, 'ok', now, newest, tail}
if value == '' then
  if not head then return answer end
  redis.call('UNLINK', KEYS[5])
  redis.call('HDEL', KEYS[2], id)
  redis.call('ZREM', KEYS[3], id)
  redis.call('ZREM', KEYS[4], id)
  redis.call('HSET', KEYS[1], 'bytes', string.format('%.0f', bytes))
  if buckets == '1' and redis.call('EXISTS', KEYS[3]) == 0 then redis.call('UNLINK', KEYS[1]) end
  return answer
end
redis.call('HSET', KEYS[1], 'schema', SCHEMA, 'buckets', buckets, 'bytes', string.format('%.0f', bytes))
redis.call('HSET', KEYS[2], id, value)
if not head then redis.call('ZADD', KEYS[3], 0, id) end
if idle == '' then redis.call('ZREM', KEYS[4], id) else redis.call('ZADD', KEYS[4], idle, id) end
local beyond = tonumber(ARGV[15])
for seq = cut + 1, math.min(beyond, newest) do redis.call('HDEL', KEYS[5], string.format('e%.0f', seq)) end
-- One command for all that is new: each is written to the append-only file, and sent to replicas, with its key.
local fields = {'id', id, 'stamp', string.sub(value, 9, 24), 'newest', ARGV[20], 'cut', ARGV[15]}
local function put(field, what)
  if #fields >= 2000 then
    redis.call('HSET', KEYS[5], unpack(fields))
    fields = {}
  end
  fields[#fields + 1] = field
  fields[#fields + 1] = what
end
local function put_receipt(of, at, what)
  put('v' .. at, what)
  put('r' .. of, at)
end
if name ~= '' then put_receipt(name, version, ARGV[13]) end
local entries = 21 + 3 * tonumber(ARGV[21])
for place = 22, entries, 3 do put_receipt(ARGV[place], ARGV[place + 1], ARGV[place + 2]) end
for place = entries + 1, #ARGV do put(string.format('e%.0f', after + place - entries), ARGV[place]) end
redis.call('HSET', KEYS[5], unpack(fields))
return answer
""".replace("SCHEMA", f"'{SCHEMA}'")

_NAMES = """
local found, after, wanted, left = {}, ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[6])
local live = ARGV[5] ~= '' and now - tonumber(ARGV[5]) or nil
local done = 0
while #found < 2 * wanted and left > 0 do
  local from = after == '' and '-' or '(' .. after
  local ids = redis.call('ZRANGEBYLEX', KEYS[3], from, '+', 'LIMIT', 0, math.min(wanted, 100))
  if #ids == 0 then
    done = 1
    break
  end
  for _, id in ipairs(ids) do
    after, left = id, left - 1
    local touched = live and redis.call('ZSCORE', KEYS[4], id)
    if not (touched and tonumber(touched) < live) then
      found[#found + 1] = id
      found[#found + 1] = redis.call('HGET', KEYS[2], id) or ''
      if #found >= 2 * wanted then break end
    end
  end
end
return {nonce, 'ok', now, done, after, found}
"""

_STALE = """
local found, rows = {}, tonumber(ARGV[4])
local function add(ids)
  for _, id in ipairs(ids) do
    found[#found + 1] = id
    found[#found + 1] = redis.call('HGET', KEYS[2], id) or ''
  end
end
local expired = string.format('(%.0f', now - tonumber(ARGV[3]))
add(redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', expired, 'LIMIT', 0, rows))
add(redis.call('ZRANGEBYSCORE', KEYS[4], string.format('(%.0f', now), '+inf', 'LIMIT', 0, rows - #found / 2))
return {nonce, 'ok', now, found}
"""

_TOTALS = """
local all, unheld = redis.call('ZCARD', KEYS[3]), redis.call('ZCARD', KEYS[4])
local bytes, gone, size, ids = tonumber(meta[3] or 0), 0, 0, {}
if ARGV[3] ~= '' then
  local expired = string.format('(%.0f', now - tonumber(ARGV[3]))
  gone = redis.call('ZCOUNT', KEYS[4], '-inf', expired)
  ids = redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', expired, 'LIMIT', ARGV[4], ARGV[5])
end
for _, id in ipairs(ids) do
  local head = redis.call('HGET', KEYS[2], id)
  if head then size = size + struct.unpack('>I8', head) end
end
return {nonce, 'ok', now, all, bytes, all - unheld, gone, size, #ids}
"""

_LAYOUT = """
local meta = redis.call('HMGET', KEYS[1], 'schema', 'buckets')
if not meta[1] and redis.call('EXISTS', KEYS[1]) == 1 then return {ARGV[1], 'foreign', now} end
if meta[1] and meta[1] ~= 'SCHEMA' then return {ARGV[1], 'schema', now, tonumber(meta[1]) or 0} end
if not meta[2] and ARGV[3] == '1' then
  redis.call('HSET', KEYS[1], 'schema', 'SCHEMA', 'buckets', ARGV[2], 'bytes', '0')
  meta[2] = ARGV[2]
end
return {ARGV[1], 'ok', now, tonumber(meta[2] or 0)}
""".replace("SCHEMA", str(SCHEMA))


def script(flags: str, keys: int, *parts: str) -> Script:
    """Return the script of these parts, the server's time first."""
    text = "".join((f"#!lua{flags}\n", CLOCK, *parts))
    # SHA-1 is the name that the server gives a script, and nothing else.
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest(), keys)


_READS = " flags=no-writes"
_EMPTIES = " flags=allow-oom"
_WRITES = (_BUCKET, _CONVERSATION, _PAGE, _RECEIPT, _WRITE)

LOOK: Final = script(_READS, 5, _BUCKET, _CONVERSATION, _RECEIPT, _LOOK)
PAGE: Final = script(_READS, 5, _BUCKET, _CONVERSATION, _PAGE, _READ)
RECEIPTS: Final = script(_READS, 5, _BUCKET, _CONVERSATION, _RECEIPTS)
WRITE: Final = script("", 5, *_WRITES)
"""A change that needs room."""
WRITE_WITHIN: Final = script(_EMPTIES, 5, *_WRITES)
"""A change that grows nothing: a full server takes it."""
NAMES: Final = script(_READS, 4, _BUCKET, _NAMES)
STALE: Final = script(_READS, 4, _BUCKET, _STALE)
TOTALS: Final = script(_READS, 4, _BUCKET, _TOTALS)
LAYOUT: Final = script("", 1, _LAYOUT)
"""How many buckets a namespace has; with '1' as third argument one that has none gets as many as the second says."""
LAYOUT_SEEN: Final = script(_READS, 1, _LAYOUT)
