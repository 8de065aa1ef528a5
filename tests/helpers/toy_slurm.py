"""A real Slurm of one node on this machine, for tests.

Its folder and ports are separate from those of a Slurm that is installed. Tests start and stop it.
"""

import contextlib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from filelock import FileLock, Timeout

CONF = Path("/etc/slurm/slurm.conf")
GRES = CONF.with_name("gres.conf")
# First line of the files that are written to /etc/slurm; the folder of their toy Slurm follows.
MARK = "# Written by Lantern's tests/helpers/toy_slurm.py for "
TOOLS = ["slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "munged"]
CPUS = 4
# Held while a toy Slurm runs. If files of a toy Slurm exist and the lock is free, its test run was killed.
LOCK = FileLock(Path(tempfile.gettempdir()) / "lantern-toy-slurm.lock")

SLURM_CONF = """\
{mark}{folder}
ClusterName=toy
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmctldPort=16817
SlurmdPort=16818
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
MpiDefault=none
# By process group: a process whose parent died is still found, and killed with its job.
ProctrackType=proctrack/pgid
TaskPlugin=task/none
TaskProlog={folder}/task_prolog.sh
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
# More cores than the machine may have: what waits does not keep others waiting.
SlurmdParameters=config_overrides
SchedulerParameters=sched_min_interval=0,batch_sched_delay=0,bf_interval=5
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
ReturnToService=2
KillWait=5
# Finished jobs stay to be looked at.
MinJobAge=3600
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory={memory} Gres=gpu:toy:1 State=UNKNOWN
PartitionName=cpu Nodes={host} Default=YES MaxTime=INFINITE State=UP
PartitionName=gpu Nodes={host} Default=NO MaxTime=INFINITE State=UP
"""
# The toy's only GPU is a file that exists on every machine.
GRES_CONF = "{mark}{folder}\nNodeName={host} Name=gpu Type=toy File=/dev/null\n"
# Runs before each task and writes down its visible GPUs. Slurm sets the variables that it prints for the task.
TASK_PROLOG = """\
#!/bin/sh
echo "$SLURM_JOB_ID ${{CUDA_VISIBLE_DEVICES-none}}" >> {folder}/visible_devices.txt
echo "export LANTERN_TOY_SLURM={folder}"
"""


def why_not():
    """Return the reason why no toy Slurm can run here, as a sentence, or None if it can.

    Remains of a toy Slurm whose tests were killed are removed.
    """
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"Slurm is not installed ({missing[0]} is missing): as root, run tests/cluster/install_slurm.sh"
    if os.geteuid() != 0:
        return "a toy Slurm can be started by root only"
    found = [file.read_text().partition("\n")[0] for file in (CONF, GRES) if file.exists()]
    if any(not line.startswith(MARK) for line in found):
        return f"{CONF.parent} belongs to a Slurm that is already here, which tests leave alone"
    try:
        LOCK.acquire(timeout=0)
    except Timeout:
        return "another toy Slurm is running: wait for the end of its tests"
    for line in found:
        ToySlurm(Path(line.removeprefix(MARK))).stop()
    return None


def _pid(file):
    """Return the process id in a pid file, if its daemon runs.

    It is None if the file is missing, or if the id now belongs to another program.
    """
    try:
        pid = int(file.read_text())
        return pid if file.stem in Path(f"/proc/{pid}/cmdline").read_text() else None
    except (OSError, ValueError):
        return None


def _environment(pid):
    """Return the environment of a process, as b"NAME=value" strings. It is empty if the process has ended."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def wait(is_done, seconds, what):
    """Wait until a condition is true.

    Args:
        is_done: the condition, a function without arguments.
        seconds: time limit.
        what: the condition in words, for the message.

    Raises:
        TimeoutError: the time is over.
    """
    deadline = time.monotonic() + seconds
    while not is_done():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} within {seconds} s")
        time.sleep(0.1)


class ToySlurm:
    """One Slurm node with one mock GPU, in the partitions `cpu` and `gpu`.

    It is a context manager: Slurm runs inside the context and is removed at its end.

    Attributes:
        folder: configuration, logs, pid files and state.
    """

    def __init__(self, folder=None):
        self.folder = folder or Path(tempfile.mkdtemp(prefix="lantern-slurm-"))

    def __enter__(self):
        try:
            self._write()
            key = self.folder / "munge.key"  # for a separate munged, so that the machine's munged is not touched
            key.write_bytes(secrets.token_bytes(1024))
            key.chmod(0o400)
            files = {"socket": "munge.socket", "key-file": "munge.key", "pid-file": "munged.pid"}
            files |= {"log-file": "munged.log", "seed-file": "munged.seed"}
            self.run("munged", *[f"--{name}={self.folder / file}" for name, file in files.items()])
            self.run("slurmctld", "-i")
            wait(lambda: "is UP" in self.run("scontrol", "ping", check=False), 20, "slurmctld must answer")
            self.run("slurmd")
            wait(lambda: "idle" in self.run("sinfo", "-h", "-o", "%T", check=False), 20, "the node must be idle")
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *error):
        self.stop()

    def _write(self):
        """Write the configuration files."""
        memory = int(re.search(r"RealMemory=(\d+)", self.run("slurmd", "-C"))[1]) * 9 // 10
        host = socket.gethostname().partition(".")[0]
        values = {"mark": MARK, "folder": self.folder, "host": host, "memory": memory}
        values["cpus"] = max(CPUS, os.cpu_count())
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        CONF.parent.mkdir(exist_ok=True)
        CONF.write_text(SLURM_CONF.format(**values))
        GRES.write_text(GRES_CONF.format(**values))
        prolog = self.folder / "task_prolog.sh"
        prolog.write_text(TASK_PROLOG.format(**values))
        prolog.chmod(0o755)
        self.folder.chmod(0o755)

    def run(self, *command, check=True):
        """Run a command of Slurm, and return what it prints.

        Raises:
            RuntimeError: the command fails, unless `check` is False.
        """
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=self.folder)
        if check and result.returncode:
            raise RuntimeError(f"{' '.join(command)} failed: {result.stderr or result.stdout}")
        return result.stdout

    def jobs(self):
        """Return all jobs, oldest first, as dicts with scontrol's keys: JobId, JobState, Partition, TRES and so on."""
        lines = self.run("scontrol", "show", "jobs", "--oneliner").splitlines()
        jobs = [dict(re.findall(r"(\S+?)=(\S*)", line)) for line in lines if line.startswith("JobId=")]
        return sorted(jobs, key=lambda job: int(job["JobId"]))

    def visible_devices(self):
        """Return job id -> the values of CUDA_VISIBLE_DEVICES that its tasks had. "none" means that it was not set."""
        seen = {}
        for line in (self.folder / "visible_devices.txt").read_text().splitlines():
            job, _, devices = line.partition(" ")
            seen.setdefault(job, set()).add(devices)
        return seen

    def processes(self, job=None):
        """Return the ids of the running processes of a job, or of all jobs if `job` is None."""
        marks = {f"LANTERN_TOY_SLURM={self.folder}".encode()} | ({f"SLURM_JOB_ID={job}".encode()} if job else set())
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if marks <= set(_environment(pid))]

    def signal(self, job, number):
        """Send a signal to the processes of a job without Slurm's knowledge. None sends it to all jobs."""
        for pid in self.processes(job):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def logs(self):
        """Return the text of the daemons' logs."""
        return "\n".join(f"== {file}\n{file.read_text()}" for file in sorted(self.folder.glob("*.log")))

    def stop(self):
        """Stop all jobs and daemons of this Slurm, and remove its files from /etc/slurm."""
        if _pid(self.folder / "slurmctld.pid"):
            self.run("scancel", "--quiet", "--user", "root", check=False)
            with contextlib.suppress(TimeoutError):
                wait(lambda: not self.run("squeue", "-h", check=False).strip(), 20, "jobs must end")
        for name in ("slurmd", "slurmctld", "munged"):
            self._end(self.folder / f"{name}.pid")
        self.signal(None, signal.SIGKILL)
        for file in (CONF, GRES):
            if file.exists() and file.read_text().startswith(f"{MARK}{self.folder}\n"):
                file.unlink()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self, file):
        """Stop the daemon of a pid file: politely first, after 10 seconds by force."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            pid = _pid(file)
            if pid is None:
                return
            os.kill(pid, number)
            with contextlib.suppress(TimeoutError):
                wait(lambda: _pid(file) is None, 10, f"{file.stem} must end")
