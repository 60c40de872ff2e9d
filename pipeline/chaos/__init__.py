"""Chaos: a whole installation whose every part is broken at random, and the ledger afterwards.

Nothing in here is used by the rest of the package, and the rest has no hooks for it: processes are
killed and frozen from outside, connections are cut by proxies, and the mail server is one of ours.
"""
