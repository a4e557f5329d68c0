"""What runs in the sandbox's own processes: plain Python, started without site-packages.

`server` waits for jobs in the jail that it has built (`jail`); each job has a `keeper`, which starts the untrusted
program once for every test (`program`) and ends whatever it leaves. No expected answer ever comes here.
"""
