"""The step walk: real code in a child process, broken before and after its every I/O call.

    python -m tests.faults.walk            the whole of it, a table at the end
    python -m tests.faults.walk send kill  only what these words name

`points` counts the calls in the child and breaks the k-th, `operations` are what children do,
`zygote` forks them, `aftermath` lets ordinary recovery and workers finish what is left, `ledger`
compares rows, deliveries, attempts and what the SMTP server accepted, `walker` goes from k to k.
Nothing of this has a hook in the product: psycopg2's and the socket's classes are replaced in the
child before it runs.
"""
