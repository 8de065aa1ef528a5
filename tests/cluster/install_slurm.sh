#!/usr/bin/env bash
# Installs Debian's (or Ubuntu's) Slurm and munge, for tests/cluster. Starts nothing: tests/helpers/toy_slurm.py does. Says nothing when
# all is well.
set -euo pipefail

installed() { command -v slurmctld && command -v slurmd && command -v sbatch && command -v munged; }

if installed >/dev/null; then exit 0; fi
if [ "$(id -u)" != 0 ]; then
	echo "Slurm can be installed by root only: the tests of the cluster will skip" >&2
	exit 1
fi
if ! command -v apt-get >/dev/null; then
	echo "Slurm is installed with apt-get, which this machine lacks: the tests of the cluster will skip" >&2
	exit 1
fi
export DEBIAN_FRONTEND=noninteractive
{ apt-get update -qq && apt-get install -qq -o DPkg::Lock::Timeout=120 --no-install-recommends slurm-wlm munge; } >/dev/null 2>&1 || true
installed >/dev/null || { echo "Slurm could not be installed: the tests of the cluster will skip" >&2; exit 1; }
