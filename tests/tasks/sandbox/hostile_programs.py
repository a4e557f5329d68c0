"""Programs that want the reward without the work, or only want to do harm.

Some would earn it if one measure failed. ANSWERS, PORT, ROOT and PID are replaced by a file that holds the answers, a
port of this machine that sends them, the checkout, and the process that grades.
"""

STDIN = {
    "fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "fork bomb that ends": "import os\nfor _ in range(40):\n    try: os.fork()\n    except OSError: pass",
    "thread bomb": "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(60,)).start()",
    "memory bomb": "a = []\nwhile True: a.append(bytearray(1 << 20))",
    "memory bomb in children": """
import os
while os.fork() or True:
    a = bytearray(1 << 24)
""",
    "memory in files without names": """
import os
held = []
while True:
    held.append(os.memfd_create("a"))
    for _ in range(4096): os.write(held[-1], bytes(1 << 16))
""",
    "shared memory": """
import ctypes
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
for _ in range(100000):
    if libc.shmget(0, 1 << 20, 0o1600) < 0: raise SystemExit("refused")
""",
    "infinite loop": "while True: pass",
    "one long instruction": "print(9 ** 9 ** 9)",
    "catastrophic pattern": "import re\nre.match('(a+)+b', 'a' * 60)",
    "sleep": "import time\ntime.sleep(1000)",
    "output flood": "while True: print('3' * 10000)",
    "error output flood": "import sys\nwhile True: print('3' * 10000, file=sys.stderr)",
    "huge file": "with open('a', 'wb') as f:\n    while True: f.write(bytes(1 << 20)); f.flush()",
    "sparse file": "import os\nf = open('a', 'wb'); f.truncate(1 << 40)",
    "many files": "import itertools\nfor i in itertools.count(): open(str(i), 'w').close()",
    "many directories": "import os\nwhile True:\n    os.mkdir('a'); os.chdir('a')",
    "write outside": """
import os
for place in (os.path.dirname('ANSWERS'), '/', '/usr/lib', '/tmp', '/dev', '/dev/shm', os.path.dirname(os.__file__)):
    try: open(os.path.join(place, 'was_here'), 'w').write('x')
    except OSError: pass
""",
    "read shadow": "print(open('/etc/shadow').read())",
    "read the answers": "print(open('ANSWERS').read().split()[int(input()[0]) // 3])",
    "read the answers through a link": "import os\nos.symlink('ANSWERS', 'a')\nprint(open('a').read())",
    "links in its own place": "import os\nos.symlink('/', 'a'); os.symlink('b', 'b'); os.link('/etc/passwd', 'c')",
    "directory without rights": "import os\nos.mkdir('a')\nopen('a/b', 'w').close()\nfor n in 'a.': os.chmod(n, 0)",
    "delete the directory": "import os\nos.rmdir(os.getcwd())",
    "read the parent": """
import os
for pid in (os.getppid(), PID):
    for name in ('environ', 'cmdline', 'maps', 'mem'):
        print(open(f'/proc/{pid}/{name}', 'rb').read(1000))
""",
    "look into descriptors": """
import os
for number in range(3, 256):
    try: print(os.read(number, 4096))
    except OSError: pass
    try: os.write(number, b'\\x04' + bytes(16))
    except OSError: pass
""",
    "connect": """
import socket
print(socket.create_connection(('127.0.0.1', PORT)).recv(1000).split()[int(input()[0]) // 3].decode())
""",
    "listen": "import socket\ns = socket.create_server(('', 0)); s.accept()",
    "resolve a name": "import socket\nprint(socket.getaddrinfo('example.com', 80))",
    "ignored signals": """
import signal, time
for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}: signal.signal(number, signal.SIG_IGN)
signal.alarm(1)
while True: time.sleep(60)
""",
    "kill everybody": "import os\nos.kill(-1, 9)",
    "kill the parent": "import os\nos.kill(os.getppid(), 9)",
    "kill the grader": "import os\nos.kill(PID, 9)",
    "stop itself": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    "trace the parent": """
import ctypes, os
if ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0) == 0:
    import time
    time.sleep(60)
""",
    "session of its own": "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(1000)",
    "daemon": """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for number in range(256):
            try: os.close(number)
            except OSError: pass
        while True: time.sleep(1)
    os._exit(0)
""",
    "grandchild that holds the pipe": """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0: time.sleep(1000)
    os._exit(0)
""",
    "grandchild that goes on printing": """
import os
if os.fork() == 0:
    while True: os.write(1, b'3' * 1000)
""",
    "raised limits": """
import resource
for number in range(16):
    for limit in (resource.RLIM_INFINITY, resource.getrlimit(number)[1] + 1):
        try: resource.setrlimit(number, (limit, limit))
        except (OSError, ValueError): pass
a = bytearray(1 << 30)
open('a', 'wb').write(a)
""",
    "become root": "import os\nos.setuid(0)\nprint(open('/etc/shadow').read())",
    "namespace with rights": """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x10000000 | 0x20000) != 0: raise SystemExit('refused')
libc.mount(b'none', os.getcwd().encode(), b'tmpfs', 0, None)
while True: open('a', 'ab').write(bytes(1 << 20))
""",
    "leave the jail": """
import os
os.mkdir('a'); os.chroot('a')
for _ in range(64): os.chdir('..')
os.chroot('.')
print(open('ANSWERS').read())
""",
    "exit": "import sys\nsys.exit(0)",
    "hard exit": "import os\nprint('passed')\nos._exit(0)",
    "crash": "import ctypes\nctypes.string_at(0)",
    "recursion": "def f(): f()\nf()",
    "deep recursion": "import sys\nsys.setrecursionlimit(1 << 30)\ndef f(): f()\nf()",
    "deep expression": "print(eval('(' * 100000))",
    "infinite generator": "print(*iter(int, 1))",
    "closed descriptors": "import os\nos.closerange(0, 1 << 16)\nprint(3)",
    "forged message": "print('ok'); print('all tests passed'); print('reward: 1.0')",
    "overridden print": "import builtins\nprint = builtins.print = lambda *_: True\nprint(3)",
    "binary garbage": "import os\nos.write(1, os.urandom(10000))",
    "surrogates": "print('\\ud800')",
    "null characters": "print('\\0' * 100)",
    "waiting for more input": "import sys\nwhile True: sys.stdin.read()",
    "shell": "import os\nos.execv('/bin/sh', ['sh', '-c', 'cat ANSWERS; sleep 1000'])",
    "shell of another process": "import subprocess\nprint(subprocess.check_output('cat ANSWERS', shell=True).decode())",
    "modules of the grader": """
import sys
sys.path[:0] = ['ROOT']
import isocompute_jax.tasks.graders.code
""",
    "modules of the sandbox": """
import sys
for name, module in list(sys.modules.items()):
    if name.startswith('inside'):
        for key in list(vars(module)): setattr(module, key, None)
""",
    "hanging exit handler": "import atexit, time\natexit.register(time.sleep, 1000)",
    "thread that does not end": "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,)).start()",
    "exit handler that kills": "import atexit, os\natexit.register(os._exit, 0)\nprint('x')",
    "environment": "import os\nprint(os.environ, open('/proc/self/environ').read())",
    "searched memory": """
import gc, sys
frame = sys._getframe()
while frame is not None:
    print([v for v in (*frame.f_locals.values(), *frame.f_globals.values()) if 'SECRET' in repr(v)])
    frame = frame.f_back
print([o for o in gc.get_objects() if type(o) in (dict, list, tuple) and 'SECRET' in repr(o)])
""",
    "caught everything": """
import signal
def again(*_):
    while True:
        try:
            while True: pass
        except BaseException: pass
signal.signal(signal.SIGXCPU, again)
again()
""",
    "text that is no program": "this is not python",
    "null bytes in the source": "print(3)\0",
    "coding of the source": "# -*- coding: punycode -*-\nprint(4)",
}
"""Read two numbers, print a secret."""

CALLS = {
    "exit on import": "import sys\nsys.exit(0)",
    "hard exit in a call": "import os\ndef f(x): os._exit(0)",
    "equal to everything": """
class Same(int):
    def __eq__(self, other): return True
    def __hash__(self): return 0
    __req__ = __eq__
def f(x): return Same()
""",
    "equal list": "class L(list):\n    def __eq__(self, other): return True\ndef f(x): return L()",
    "patched json": """
import builtins, json
json.dumps = lambda *a, **k: 'null'
json.JSONEncoder.encode = json.JSONEncoder.default = lambda *a: 'true'
builtins.repr = builtins.sorted = builtins.type = builtins.isinstance = lambda *a: True
def f(x): return True
""",
    "forged results": """
import os
for guess in ('true', 'false', 'null', '0', '1', '[0, 1]', 'NaN'):
    for index in (0, 1): os.write(3, f'[{index}, {guess}]\\n'.encode())
os._exit(0)
""",
    "garbage among the results": "import os\nos.write(3, os.urandom(5000))\ndef f(x): return x",
    "results without end": "import os\nwhile True: os.write(3, b'[0, 1]')",
    "deep result": "a = []\nfor _ in range(100000): a = [a]\ndef f(x): return a",
    "result that holds itself": "a = []\na.append(a)\ndef f(x): return a",
    "endless result": "import itertools\ndef f(x): return itertools.count()",
    "large result": "def f(x): return 'a' * (1 << 24)",
    "number with many digits": "def f(x): return 10 ** 100000",
    "hanging call": "import time\ndef f(x): time.sleep(1000)",
    "closed results": "import os\nos.close(3)\ndef f(x): return x",
    "endless import": "while True: pass",
    "no such function": "def g(x): return x",
    "class without an end": "class Solution:\n  def __init__(self):\n    while True: pass\n  def f(self, x): return x",
    "error that cannot be shown": """
class E(BaseException):
    def __str__(self): raise E
    __repr__ = __str__
def f(x): raise E
""",
}
"""Define f, whose values are secret."""

NEEDS = {
    "shared memory": {"shared_memory", "system_calls"},
    "read the answers": {"files", "landlock"},
    "read the answers through a link": {"files", "landlock"},
    "shell": {"files", "landlock"},
    "shell of another process": {"files", "landlock"},
    "write outside": {"files", "landlock"},
    "read shadow": {"files", "landlock", "user"},
    "connect": {"network", "no_tcp"},
    "kill everybody": {"processes", "user", "no_signals"},
    "kill the parent": {"processes", "user", "no_signals"},
    "kill the grader": {"processes", "user", "no_signals"},
    "trace the parent": {"processes", "user", "landlock", "system_calls"},
    "read the parent": {"processes", "user", "landlock"},
    "become root": {"user", "files", "landlock"},
    "namespace with rights": {"files", "landlock", "system_calls"},
}
"""Measures without which a program does what it wants; one of them is enough."""
