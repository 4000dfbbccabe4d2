"""Frozen values and pure functions on them: the ground floor that everything else stands on."""
