"""A small model of the delivery protocol, searched whole: every order of steps, any crash.

python -m tests.faults.model      sizes, and the counterexample for each guard that is taken out
"""
