"""A real Slurm of one node on loopback, for tests: started and stopped here, with a folder and ports of its own."""

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
# The first line of what is written to /etc/slurm, with the folder of the Slurm that it belongs to.
MARK = "# Written by Lantern's tests/helpers/toy_slurm.py for "
TOOLS = ["slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "munged"]
CPUS = 4
# Held as long as a toy Slurm runs. One whose lock is free was left behind by a test run that was killed.
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
# Runs before each task: writes down what the task sees; what it prints is set for the task.
TASK_PROLOG = """\
#!/bin/sh
echo "$SLURM_JOB_ID ${{CUDA_VISIBLE_DEVICES-none}}" >> {folder}/visible_devices.txt
echo "export LANTERN_TOY_SLURM={folder}"
"""


def why_not():
    """Why no toy Slurm can run here, as a sentence; None where it can."""
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
    """The running daemon of a pid file; None where there is none: another process may have taken over its number."""
    try:
        pid = int(file.read_text())
        return pid if file.stem in Path(f"/proc/{pid}/cmdline").read_text() else None
    except (OSError, ValueError):
        return None


def _environment(pid):
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def wait(is_done, seconds, what):
    deadline = time.monotonic() + seconds
    while not is_done():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} within {seconds} s")
        time.sleep(0.1)


class ToySlurm:
    """One node with one mock GPU in the partitions cpu and gpu. A context manager: up inside, gone after.

    Attributes:
        folder: configuration, logs, pid files and state.
    """

    def __init__(self, folder=None):
        self.folder = folder or Path(tempfile.mkdtemp(prefix="lantern-slurm-"))

    def __enter__(self):
        try:
            self._write()
            key = self.folder / "munge.key"  # a munged of our own: one that the machine may have is not touched
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
        """Runs a command of Slurm; returns what it prints."""
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=self.folder)
        if check and result.returncode:
            raise RuntimeError(f"{' '.join(command)} failed: {result.stderr or result.stdout}")
        return result.stdout

    def jobs(self):
        """All jobs of this Slurm, oldest first, with scontrol's keys: JobId, JobState, Partition, TRES, ..."""
        lines = self.run("scontrol", "show", "jobs", "--oneliner").splitlines()
        jobs = [dict(re.findall(r"(\S+?)=(\S*)", line)) for line in lines if line.startswith("JobId=")]
        return sorted(jobs, key=lambda job: int(job["JobId"]))

    def visible_devices(self):
        """Job id -> the values of CUDA_VISIBLE_DEVICES that its tasks saw ("none" where it was not set)."""
        seen = {}
        for line in (self.folder / "visible_devices.txt").read_text().splitlines():
            job, _, devices = line.partition(" ")
            seen.setdefault(job, set()).add(devices)
        return seen

    def processes(self, job=None):
        """Numbers of the processes of this Slurm's tasks, running now: of all jobs, or of one."""
        marks = {f"LANTERN_TOY_SLURM={self.folder}".encode()} | ({f"SLURM_JOB_ID={job}".encode()} if job else set())
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if marks <= set(_environment(pid))]

    def signal(self, job, number):
        """Sends a signal to the processes of a job (of all, for None), behind Slurm's back."""
        for pid in self.processes(job):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def logs(self):
        """What the daemons logged."""
        return "\n".join(f"== {file}\n{file.read_text()}" for file in sorted(self.folder.glob("*.log")))

    def stop(self):
        """Ends all jobs and daemons of this Slurm, and takes its files out of /etc/slurm."""
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
        for number in (signal.SIGTERM, signal.SIGKILL):
            pid = _pid(file)
            if pid is None:
                return
            os.kill(pid, number)
            with contextlib.suppress(TimeoutError):
                wait(lambda: _pid(file) is None, 10, f"{file.stem} must end")
