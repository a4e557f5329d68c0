#!/bin/bash
# One training run as two linked SLURM jobs, one of servers and one of learners, each in a partition of its own.
#
#   launch/slurm/two_jobs.sh --servers='--partition=inference --nodes=2 --gpus-per-node=8' \
#       --learners='--partition=training --nodes=2 --gpus-per-node=8' -- --workdir=runs/hard --servers_per_node=8 \
#       --server_gpus=1 --engine=vllm --server_python=.venv-vllm-cuda/bin/python --model=models/base \
#       -- --config=configs/isocompute_hard_qwen2_5_7b.py --config.mesh.fsdp=16
#
# --servers and --learners are flags of sbatch; what stands after the first `--` goes to launch/slurm/run.sh. The
# learners wait for the addresses that the servers' job writes beside the run directory, and find them again there when
# that job moves; the servers' job ends with the learners'. Prints the two job numbers.
set -euo pipefail

fail() {
  echo "error: $*" >&2
  exit 2
}

servers='' learners='' workdir=''
while (($#)) && [[ $1 != -- ]]; do
  case $1 in
    --servers=*) servers=${1#*=} ;;
    --learners=*) learners=${1#*=} ;;
    *) fail "unknown flag $1; the head of launch/slurm/two_jobs.sh lists them" ;;
  esac
  shift
done
(($#)) || fail 'flags of launch/slurm/run.sh are missing: give them after --'
shift
for argument in "$@"; do
  [[ $argument == -- ]] && break
  [[ $argument == --workdir=* ]] && workdir=${argument#*=}
done
[[ $workdir ]] || fail '--workdir is missing: say where the files of the run go'
script=$(dirname "${BASH_SOURCE[0]}")/run.sh
cluster=${workdir%/}.cluster
read -ra servers <<<"$servers"
read -ra learners <<<"$learners"
(umask 077 && mkdir -p "$cluster")
rm -f "$cluster/endpoints" "$cluster/ended" "$cluster/learners_job"

first=$(sbatch --parsable "${servers[@]}" "$script" --role=servers "$@")
first=${first%%;*} # a cluster's name may follow
if ! second=$(sbatch --parsable --dependency=after:"$first" "${learners[@]}" "$script" --role=learners "$@"); then
  scancel "$first"
  fail "the learners' job was refused (see above); that of the servers, $first, is cancelled"
fi
echo "${second%%;*}" >"$cluster/learners_job"
echo "servers: job $first; learners: job ${second%%;*}"
