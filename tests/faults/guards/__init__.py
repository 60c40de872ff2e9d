"""Guards proven by breaking: each is taken out of a copy of the code, and a test then fails.

python -m tests.faults.guards              all of them; docs/guards.md is written anew
python -m tests.faults.guards marker lock  those whose names hold one of these words
"""
