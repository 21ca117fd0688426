"""Installs what the clients need, into a cache outside the source tree.

System packages come from Debian's archive when their command is missing; the clients themselves
from their own registries, in pinned versions, as each language's ordinary tool is set up. Each
step is skipped when the cache already holds what its lock file asks for.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import threading

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CLIENTS = os.path.join(HERE, "clients")
DEBIAN = {  # command: package
    "kcat": "kcat",
    "java": "default-jdk-headless",
    "javac": "default-jdk-headless",
    "mvn": "maven",
    "node": "nodejs",
    "npm": "npm",
    "go": "golang-go",
}


class InstallError(Exception):
    pass


def run(command, log, **options):
    log.write(f"$ {' '.join(command)}\n")
    log.flush()
    for attempt in (1, 2):  # a registry's hiccup is no verdict on the broker
        done = subprocess.run(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, **options)
        if done.returncode == 0:
            return
    raise InstallError(f"{' '.join(command)}: exit code {done.returncode}; see {log.name}")


def tree_hash(*paths):
    digest = hashlib.sha256()
    for path in paths:
        files = [path]
        if os.path.isdir(path):
            files = [os.path.join(d, f) for d, _, names in os.walk(path) for f in names]
        for file in sorted(files):
            digest.update(file.encode())
            with open(file, "rb") as f:
                digest.update(f.read())
    return digest.hexdigest()


class Installer:
    def __init__(self, cache):
        self.cache = os.path.abspath(cache)
        os.makedirs(self.cache, exist_ok=True)
        self.python = os.path.join(self.cache, "venv", "bin", "python")
        self.jars = os.path.join(self.cache, "jars")
        self.java_classes = os.path.join(self.cache, "java-classes")
        self.franz = os.path.join(self.cache, "franz")
        self.kafkajs = os.path.join(self.cache, "kafkajs")

    def step(self, name, stamp, work):
        """Runs `work(log)` unless the cache holds its outcome for `stamp`."""
        mark = os.path.join(self.cache, f"{name}.stamp")
        if os.path.exists(mark) and open(mark).read() == stamp:
            return
        with open(os.path.join(self.cache, f"{name}.log"), "w") as log:
            work(log)
        with open(mark, "w") as f:
            f.write(stamp)

    def debian(self):
        with open(os.path.join(self.cache, "debian.log"), "w") as log:
            wanted = {p for c, p in DEBIAN.items() if not shutil.which(c)}
            if subprocess.run([sys.executable, "-c", "import ensurepip, venv"], stderr=log).returncode:
                wanted.add("python3-venv")
            if wanted:
                env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
                root = [] if os.geteuid() == 0 else ["sudo", "-n", "--preserve-env"]
                run([*root, "apt-get", "update"], log, env=env)
                run([*root, "apt-get", "install", "-y", *sorted(wanted)], log, env=env)
        missing = [c for c in DEBIAN if not shutil.which(c)]
        if missing:
            raise InstallError(f"missing commands: {' '.join(missing)}")

    def python_clients(self):
        wanted = os.path.join(CLIENTS, "python", "requirements.txt")

        def work(log):
            home = os.path.join(self.cache, "venv")
            shutil.rmtree(home, ignore_errors=True)
            run([sys.executable, "-m", "venv", home], log)
            run([self.python, "-m", "pip", "install", "-r", wanted], log)

        self.step("python", tree_hash(wanted), work)

    def java_clients(self):
        source = os.path.join(CLIENTS, "java")
        pom = os.path.join(source, "pom.xml")

        def fetch(log):
            shutil.rmtree(self.jars, ignore_errors=True)
            work = os.path.join(self.cache, "maven")
            os.makedirs(work, exist_ok=True)
            shutil.copy(pom, work)
            goal = "dependency:copy-dependencies"
            run(["mvn", "-B", "-q", goal, f"-DoutputDirectory={self.jars}"], log, cwd=work)

        def compile_it(log):
            shutil.rmtree(self.java_classes, ignore_errors=True)
            files = [os.path.join(source, f) for f in os.listdir(source) if f.endswith(".java")]
            command = ["javac", "-Xlint:-options", "--release", "17", "-d", self.java_classes]
            run([*command, "-cp", os.path.join(self.jars, "*"), *sorted(files)], log)

        self.step("jars", tree_hash(pom), fetch)
        self.step("javac", tree_hash(source), compile_it)

    def node_clients(self):
        source = os.path.join(CLIENTS, "kafkajs")

        def work(log):
            os.makedirs(self.kafkajs, exist_ok=True)
            for name in os.listdir(source):
                if name.endswith((".json", ".js")):
                    shutil.copy(os.path.join(source, name), self.kafkajs)
            run(["npm", "ci", "--no-audit", "--no-fund"], log, cwd=self.kafkajs)

        self.step("kafkajs", tree_hash(source), work)

    def go_clients(self):
        source = os.path.join(CLIENTS, "franz")

        def work(log):
            run(["go", "build", "-o", self.franz, "."], log, cwd=source)

        self.step("franz", tree_hash(source), work)

    def all(self, clients, kafka):
        """Debian's packages first, then what the clients need, side by side."""
        self.debian()
        steps = [self.python_clients]
        if kafka or {"java", "streams", "tools"} & set(clients):
            steps.append(self.java_clients)
        if "kafkajs" in clients:
            steps.append(self.node_clients)
        if "franz" in clients:
            steps.append(self.go_clients)
        problems = []

        def guarded(step):
            try:
                step()
            except Exception as error:
                problems.append(f"{step.__name__}: {error}")

        threads = [threading.Thread(target=guarded, args=(s,)) for s in steps]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        if problems:
            raise InstallError("; ".join(problems))
