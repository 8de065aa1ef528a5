"""A real Slurm of one node on loopback, for tests: started and stopped here, with a folder and ports of its own.

Run as a script it stays up until Ctrl+C: `python tests/cluster/toy_slurm.py`.
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

CONF = Path("/etc/slurm/slurm.conf")
GRES = CONF.with_name("gres.conf")
# The first line of what is written to /etc/slurm, with the folder of the Slurm that it belongs to.
MARK = "# Written by Lantern's tests/cluster/toy_slurm.py for "
TOOLS = ["slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "munged"]
PORTS = {"SlurmctldPort": 16817, "SlurmdPort": 16818}
CPUS = 4
STARTER = "starter.txt"  # who started a toy Slurm: when that process is gone, nobody wants it any more

SLURM_CONF = """\
{mark}{folder}
ClusterName=toy
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmctldPort={SlurmctldPort}
SlurmdPort={SlurmdPort}
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
# Memory is sampled every second; a job that takes more than it asked for is killed. No cgroups needed.
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
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
# A variable of every process of a job, by which those that outlived it are found.
VARIABLE = "LANTERN_TOY_SLURM"
# Runs before each task: writes down what the task sees; what it prints is set for the task.
TASK_PROLOG = """\
#!/bin/sh
echo "$SLURM_JOB_ID ${{CUDA_VISIBLE_DEVICES-none}}" >> {folder}/visible_devices.txt
echo "export {variable}={folder}"
"""


def why_not():
    """Why no toy Slurm can run here, as a sentence; None where it can."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"Slurm is not installed ({missing[0]} is missing): as root, run tests/cluster/install_slurm.sh"
    if os.geteuid() != 0:
        return "a toy Slurm can be started by root only"
    owner = _owner_of_conf()
    if owner == "":
        return f"{CONF} belongs to a Slurm that is already here, which tests leave alone"
    if owner and _alive(Path(owner, "slurmctld.pid")):
        if _starter_lives(Path(owner)):
            return f"another toy Slurm is running: end the daemons whose pid files are in {owner}"
        ToySlurm(Path(owner)).stop()  # left behind by a test run that was killed
    for port in PORTS.values():
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return f"port {port} is taken"
    return None


def _owner_of_conf():
    """Folder of the toy Slurm that slurm.conf belongs to; "" where it is somebody else's, None where there is none."""
    if not CONF.exists():
        return "" if GRES.exists() and not GRES.read_text().startswith(MARK) else None
    first = CONF.read_text().partition("\n")[0]
    return first.removeprefix(MARK) if first.startswith(MARK) else ""


def _pid(file):
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


def _identity(pid):
    """Number of a process and when it started, in ticks of the machine: no later process has both."""
    try:
        return f"{pid} {Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[19]}"
    except OSError:
        return None


def _starter_lives(folder):
    file = folder / STARTER
    text = file.read_text() if file.exists() else ""
    return bool(text) and _identity(text.split()[0]) == text


def _alive(file):
    """Whether the daemon of a pid file runs; a process that took over its number is not taken for it."""
    pid = _pid(file)
    try:
        command = Path(f"/proc/{pid}/cmdline").read_text() if pid else ""
    except OSError:
        return False
    return file.stem in command


def _environment(pid):
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _wait(is_done, seconds, what):
    deadline = time.monotonic() + seconds
    while not is_done():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} within {seconds} s")
        time.sleep(0.1)


class ToySlurm:
    """One node with one GPU (a stand-in) in the partitions cpu and gpu. A context manager: up inside, gone after.

    Attributes:
        folder: configuration, logs, pid files and state.
    """

    def __init__(self, folder=None):
        self.folder = folder or Path(tempfile.mkdtemp(prefix="lantern-slurm-"))
        self.made_etc = not CONF.parent.exists()

    def __enter__(self):
        reason = why_not()
        if reason:
            raise RuntimeError(reason)
        try:
            self._write()
            self._start_munge()
            self.start_controller()
            self._run("slurmd")
            _wait(self._is_up, 20, "the toy Slurm's node must be idle")
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *error):
        self.stop()

    def _write(self):
        memory = int(re.search(r"RealMemory=(\d+)", self._run("slurmd", "-C"))[1]) * 9 // 10
        host = socket.gethostname().partition(".")[0]
        values = {
            "mark": MARK,
            "folder": self.folder,
            "host": host,
            "cpus": max(CPUS, os.cpu_count()),
            "memory": memory,
        }
        values |= {"variable": VARIABLE, **PORTS}
        (self.folder / STARTER).write_text(_identity(os.getpid()))
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        CONF.parent.mkdir(exist_ok=True)
        CONF.write_text(SLURM_CONF.format(**values))
        GRES.write_text(GRES_CONF.format(**values))
        prolog = self.folder / "task_prolog.sh"
        prolog.write_text(TASK_PROLOG.format(**values))
        prolog.chmod(0o755)
        self.folder.chmod(0o755)

    def _start_munge(self):
        """A munged of our own: one that the machine may have is neither needed nor touched."""
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
        files = {name: self.folder / file for name, file in _MUNGE_FILES.items()}
        self._run("munged", *[f"--{name}={file}" for name, file in files.items()])

    def start_controller(self):
        """Starts slurmctld; it goes on with the jobs of its state folder."""
        self._run("slurmctld", *([] if any((self.folder / "state").iterdir()) else ["-i"]))
        _wait(lambda: self.run("scontrol", "ping", check=False).find("is UP") > 0, 20, "slurmctld must answer")

    def kill_controller(self):
        """Kills slurmctld with SIGKILL; running jobs go on."""
        self._end("slurmctld", [signal.SIGKILL])

    def _is_up(self):
        return "idle" in self.run("sinfo", "-h", "-o", "%T", check=False)

    def _run(self, *command):
        return self.run(*command, in_folder=True)

    def run(self, *command, check=True, in_folder=False):
        """Runs a command of Slurm; returns what it prints."""
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=60, cwd=self.folder if in_folder else None
        )
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
        file = self.folder / "visible_devices.txt"
        seen = {}
        for line in file.read_text().splitlines() if file.exists() else []:
            job, _, devices = line.partition(" ")
            seen.setdefault(job, set()).add(devices)
        return seen

    def processes(self, job=None):
        """Numbers of the processes of this Slurm's tasks, running now: of all jobs, or of one."""
        marks = {f"{VARIABLE}={self.folder}".encode()} | ({f"SLURM_JOB_ID={job}".encode()} if job else set())
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if marks <= set(_environment(pid))]

    def signal(self, job, number):
        """Sends a signal to the processes of a job, behind Slurm's back."""
        for pid in self.processes(job):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def logs(self):
        """What the daemons logged."""
        return "\n".join(f"== {file}\n{file.read_text()}" for file in sorted(self.folder.glob("*.log")))

    def stop(self):
        """Ends all jobs and daemons of this Slurm, and takes its files out of /etc/slurm."""
        if _alive(self.folder / "slurmctld.pid"):
            self.run("scancel", "--quiet", "--user", "root", check=False)
            try:
                _wait(lambda: not self.run("squeue", "-h", check=False).strip(), 20, "jobs must end")
            except TimeoutError as error:
                print(error)
        for name in ("slurmd", "slurmctld", "munged"):
            self._end(name, [signal.SIGTERM, signal.SIGKILL])
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for file in (CONF, GRES):
            if file.exists() and file.read_text().startswith(f"{MARK}{self.folder}\n"):
                file.unlink()
        if self.made_etc and CONF.parent.exists() and not any(CONF.parent.iterdir()):
            CONF.parent.rmdir()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self, name, signals):
        file = self.folder / f"{name}.pid"
        for number in signals:
            if not _alive(file):
                return
            os.kill(_pid(file), number)
            try:
                _wait(lambda: not _alive(file), 10, f"{name} must end")
            except TimeoutError as error:
                print(error)


_MUNGE_FILES = {
    "socket": "munge.socket",
    "key-file": "munge.key",
    "pid-file": "munged.pid",
    "log-file": "munged.log",
    "seed-file": "munged.seed",
}

if __name__ == "__main__":
    with ToySlurm() as toy:
        print(f"Slurm is up, in {toy.folder}; Ctrl+C ends it")
        ending = {signal.SIGINT, signal.SIGTERM}
        signal.pthread_sigmask(signal.SIG_BLOCK, ending)
        signal.sigwait(ending)
