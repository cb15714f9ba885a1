#!/bin/bash
# Start a Slurm of one node on this machine, for tests: tests/executors/slurm.sh DIRECTORY [COMMAND...]
# It runs COMMAND with it and ends it again. Needs root and Debian's packages slurmctld, slurmd, slurm-client and munge.
set -eu
place=$(realpath "$1"); shift
mkdir -p "$place/state" "$place/spool"
host=$(hostname -s)
[ -s /etc/munge/munge.key ] || { dd if=/dev/urandom bs=1 count=1024 of=/etc/munge/munge.key 2>/dev/null; chmod 400 /etc/munge/munge.key; chown munge: /etc/munge/munge.key; }
mkdir -p /run/munge && chown munge: /run/munge && chmod 755 /run/munge
cat > "$place/slurm.conf" <<END
ClusterName=test
SlurmctldHost=$host
SlurmUser=root
AuthType=auth/munge
StateSaveLocation=$place/state
SlurmdSpoolDir=$place/spool
SlurmctldPidFile=$place/slurmctld.pid
SlurmdPidFile=$place/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SchedulerType=sched/backfill
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
KillWait=30
MinJobAge=300
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc) State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
END
export SLURM_CONF="$place/slurm.conf"
su -s /bin/bash munge -c 'munged --foreground --force' > "$place/munged.log" 2>&1 & munge=$!
sleep 1
slurmctld -D > "$place/slurmctld.log" 2>&1 & controller=$!
sleep 2
slurmd -D > "$place/slurmd.log" 2>&1 & node=$!
trap 'kill $node $controller $munge 2>/dev/null; wait 2>/dev/null || true' EXIT
for _ in $(seq 30); do sinfo -h 2>/dev/null | grep -q idle && break; sleep 1; done
sinfo
"$@"
