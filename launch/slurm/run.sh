#!/bin/bash
#SBATCH --job-name=isocompute
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#
# One training run as a SLURM job: sampler servers on their share of the nodes, one learner process on each other node.
#
#   sbatch --nodes=3 --gpus-per-node=8 --time=24:00:00 launch/slurm/run.sh --workdir=runs/hard --server_nodes=1 \
#       --servers_per_node=8 --server_gpus=1 --engine=vllm --server_python=.venv-vllm-cuda/bin/python --model=models/base \
#       -- --config=configs/isocompute_hard_qwen2_5_7b.py --config.mesh.fsdp=16
#
# What stands after `--` are flags of isocompute_jax.train (--main). Beside the run directory, DIR.cluster holds the token that
# servers and learners share (0600, fresh in each job), the servers' addresses, and their logs.
#
#   --workdir=DIR           run directory, on storage that all nodes share
#   --main=train            what runs: train; or curate, for which DIR is --out and one process does it
#   --role=both             both; or servers, learners: the halves of launch/slurm/two_jobs.sh
#   --python=PROGRAM        of the learners (.venv/bin/python)
#   --learners_per_node=1   learner processes on each of their nodes
#   --server_nodes=0        how many nodes, the last of the job, hold nothing but servers; 0: they share the learners'
#   --servers_per_node=0    servers on each node that has any; 0: the learner samples in its own process
#   --engine=jax  --model=DIR  --server_python=PROGRAM  --server_args='--flag=value ...'    of isocompute_jax.serve
#   --learner_gpus=N  --server_gpus=N    GPUs of all learner processes of a node, of one server; all there are by default
#   --learner_cpus=N  --server_cpus=N    CPUs of one learner process, of one server; an even share by default
#   --port=N                of the first server; the others follow (from the job's number by default)
#   --restarts=10           failures in a row after which a run is given up
#   --start_s=1800          servers that do not all listen after so many seconds have failed
#
# Learners that fail (exit code 1, or killed) are all started again and resume from the last checkpoint; bad input (2)
# ends the job at once. A server that dies is started again at its address. USR1, which SLURM sends before the time
# limit, has the learners write a checkpoint and puts the job back into the queue; TERM has them write one and ends it.
set -uo pipefail
umask 077

fail() { # CODE MESSAGE...
  local code=$1
  shift
  echo "error: $*" >&2
  exit "$code"
}

say() { echo "$(date +%T) $*" >&2; }

workdir='' role=both main=train python=.venv/bin/python learners_per_node=1 server_nodes=0 servers_per_node=0
engine=jax model='' server_python='' server_args='' learner_gpus='' server_gpus='' learner_cpus='' server_cpus=''
port='' restarts=10 start_s=1800
readonly HEALTHY_S=600 # a start that lasted so long ends a row of failures
readonly BACKOFF_S=(0 5 15 60 120 300)

known=' workdir role main python learners_per_node server_nodes servers_per_node engine model server_python server_args '
known+='learner_gpus server_gpus learner_cpus server_cpus port restarts start_s '
while (($#)) && [[ $1 != -- ]]; do
  name=${1%%=*} name=${name#--}
  [[ $1 == --*=* && $known == *" $name "* ]] || fail 2 "unknown flag $1; the head of launch/slurm/run.sh lists them"
  printf -v "$name" %s "${1#*=}"
  shift
done
(($#)) && shift

[[ $workdir ]] || fail 2 '--workdir is missing: say where the files of the run go'
[[ $role == both || $role == servers || $role == learners ]] || fail 2 "--role=$role: both, servers or learners"
[[ $main == train || $main == curate ]] || fail 2 "--main=$main: train or curate"
for name in learners_per_node server_nodes servers_per_node restarts start_s; do
  [[ ${!name} =~ ^[0-9]+$ ]] || fail 2 "--$name=${!name}: must be a whole number"
done
[[ ${SLURM_JOB_NODELIST:-} ]] || fail 2 'this is no SLURM job: submit it with sbatch'
if [[ $role == servers ]] && ((servers_per_node == 0)); then fail 2 '--role=servers needs --servers_per_node'; fi
if ((servers_per_node > 0)) && [[ $role != learners && ! $model ]]; then
  fail 2 '--model is missing: give the Hugging Face directory that the servers load'
fi

cluster=${workdir%/}.cluster
server_python=${server_python:-$python}
port=${port:-$((10000 + SLURM_JOB_ID * 16 % 20000))}
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
learner_nodes=("${nodes[@]}") serving_nodes=("${nodes[@]}")
if [[ $role == both ]] && ((server_nodes > 0)); then
  ((server_nodes < ${#nodes[@]})) || fail 2 "--server_nodes=$server_nodes leaves none of ${#nodes[@]} nodes to learners"
  learner_nodes=("${nodes[@]:0:${#nodes[@]}-server_nodes}") serving_nodes=("${nodes[@]: -server_nodes}")
fi
directory=--workdir=$workdir
if [[ $main == curate ]]; then
  learner_nodes=("${learner_nodes[0]}") learners_per_node=1 directory=--out=$workdir
fi
num_servers=$((servers_per_node * ${#serving_nodes[@]}))
shared=0 # steps that share a node must say what they take of it
if [[ $role == both ]] && ((server_nodes == 0 && servers_per_node > 0)); then
  shared=1
  if [[ ${SLURM_GPUS_ON_NODE:-} && ! ($learner_gpus && $server_gpus) ]]; then
    fail 2 'servers and learners share GPUs of a node: give --learner_gpus and --server_gpus, or --server_nodes'
  fi
fi
cpus=${SLURM_CPUS_ON_NODE:-1}
learner_cpus=${learner_cpus:-$((cpus / (learners_per_node + shared * servers_per_node)))}
server_cpus=${server_cpus:-$((cpus / (servers_per_node + shared * learners_per_node + !servers_per_node)))}
((learner_cpus > 0 && server_cpus > 0)) || fail 2 "$cpus CPUs of a node are too few for its processes: ask for more"
mkdir -p "$cluster" || fail 2 "--workdir=$workdir: $cluster cannot be made"

leaving='' # signal that asked the job to end
trap 'leaving=USR1' USR1
trap 'leaving=TERM' TERM INT

await() { # PID: waits for it, passes TERM on once when the job is to end, and returns its exit code
  local told=''
  while kill -0 "$1" 2>/dev/null; do # and not one long wait: a signal just before it would be seen too late
    if [[ $leaving && ! $told ]]; then
      told=1
      kill -TERM "$1" 2>/dev/null # srun hands it on to its tasks
    fi
    sleep 0.3 &
    wait $!
  done
  wait "$1"
}

pause() { # SECONDS, unless the job is to end
  local end=$((SECONDS + $1))
  while ((SECONDS < end)) && [[ ! $leaving ]]; do sleep 0.2; done
}

step() { # HOSTS TASKS_PER_NODE CPUS GPUS COMMAND...: becomes a step of the job
  local hosts=$1 tasks=$2 cpus=$3 gpus=$4 count
  shift 4
  count=$(($(tr -cd , <<<"$hosts" | wc -c) + 1))
  # --mem=0: it may use the job's memory without taking it from other steps. --wait, --kill-on-bad-exit: a process that
  # ends before the others leaves it to them to stop, with the reason.
  exec srun --exact --mem=0 --wait=0 --kill-on-bad-exit=0 --nodelist="$hosts" --nodes="$count" \
    --ntasks=$((tasks * count)) --ntasks-per-node="$tasks" --cpus-per-task="$cpus" \
    ${gpus:+--gpus-per-node="$gpus"} "$@"
}

keep_server() { # NUMBER HOST: a server, started again at its address until TERM
  local deaths=0 started code log=$cluster/server-$1.log place=$2:$((port + $1)) flags=()
  trap 'leaving=TERM' TERM # a subshell has none of its parent's
  read -ra flags <<<"$server_args"
  [[ $server_args == *--tls_cert* ]] || flags+=(--insecure)
  while [[ ! $leaving ]]; do
    started=$SECONDS
    rm -f "$cluster/server-$1.address"
    (step "$2" 1 "$server_cpus" "$server_gpus" "$server_python" -m isocompute_jax.serve --engine="$engine" \
      --model="$model" --host=0.0.0.0 --port=$((port + $1)) --port_file="$cluster/server-$1.address" \
      --token_file="$cluster/token" "${flags[@]}") >>"$log" 2>&1 &
    await $!
    code=$?
    [[ $leaving ]] && return 0
    if ((code == 2)); then
      say "server $1 at $place: bad input; log: $log"
      return 2
    fi
    ((SECONDS - started > HEALTHY_S)) && deaths=0
    ((deaths += deaths < ${#BACKOFF_S[@]} - 1))
    say "server $1 at $place died (exit code $code; log: $log); again in ${BACKOFF_S[deaths - 1]} s"
    pause "${BACKOFF_S[deaths - 1]}"
  done
}

keepers=()
start_servers() { # those of this job; returns when all listen, or the code of what went wrong
  local i host addresses=() deadline=$((SECONDS + start_s)) found
  rm -f "$cluster/endpoints" "$cluster/ended" "$cluster"/server-*.address
  head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$cluster/token.new" && mv "$cluster/token.new" "$cluster/token"
  for ((i = 0; i < num_servers; i++)); do
    host=${serving_nodes[i / servers_per_node]}
    addresses+=("$host:$((port + i))")
    (keep_server "$i" "$host") &
    keepers+=($!)
  done
  while [[ ! $leaving ]]; do
    found=("$cluster"/server-*.address)
    [[ -e ${found[0]} ]] && ((${#found[@]} == num_servers)) && break
    for i in "${keepers[@]}"; do
      kill -0 "$i" 2>/dev/null || return 2 # a keeper ends by itself for bad input alone
    done
    if ((SECONDS > deadline)); then
      say "${#found[@]} of $num_servers servers listen after $start_s s; logs: $cluster/server-*.log"
      return 1
    fi
    sleep 0.2
  done
  (IFS=, && echo "${addresses[*]}") >"$cluster/endpoints.new" && mv "$cluster/endpoints.new" "$cluster/endpoints"
  say "$num_servers servers listen: $(<"$cluster/endpoints")"
}

end_servers() {
  local i
  for i in "${keepers[@]}"; do kill -TERM "$i" 2>/dev/null; done
  for i in "${keepers[@]}"; do wait "$i"; done
  keepers=()
}

endpoints() { cat "$cluster/endpoints" 2>/dev/null; }

train() { # FLAGS...: the learners, started again until they are done, are refused, or fail too often
  local failures=0 started code now='' watcher hosts flags=()
  hosts=$(IFS=, && echo "${learner_nodes[*]}")
  while [[ ! $leaving ]]; do
    if ((servers_per_node > 0)); then
      local deadline=$((SECONDS + start_s))
      until now=$(endpoints) && [[ $now ]]; do # of the other job
        [[ $leaving ]] && return 143
        ((SECONDS < deadline)) || fail 1 "no $cluster/endpoints after $start_s s: does the servers' job run?"
        pause 1
      done
      flags=("--endpoints=$now" "--token_file=$cluster/token")
    fi
    started=$SECONDS
    (step "$hosts" "$learners_per_node" "$learner_cpus" "$learner_gpus" "$python" -m "isocompute_jax.$main" \
      "$directory" "${flags[@]}" "$@") &
    local learners=$!
    watcher=''
    if [[ $role == learners && $now ]]; then # servers that moved, with the job that holds them, are found anew
      (while [[ $(endpoints) == "$now" ]]; do sleep 2; done && kill -TERM $learners) 2>/dev/null &
      watcher=$!
    fi
    await $learners
    code=$?
    [[ $watcher ]] && kill "$watcher" 2>/dev/null
    [[ $leaving || $code =~ ^[02]$ ]] && return "$code"
    [[ $watcher && $(endpoints) != "$now" ]] && continue
    ((code == 130)) && return "$code" # interrupted from outside, with a checkpoint
    ((SECONDS - started > HEALTHY_S)) && failures=0
    if ((++failures > restarts)); then
      say "the learners failed $failures times in a row (exit code $code)"
      return 1
    fi
    local wait_s=${BACKOFF_S[failures < ${#BACKOFF_S[@]} ? failures - 1 : -1]}
    say "the learners ended with exit code $code; all again in $wait_s s ($failures of $restarts)"
    pause "$wait_s"
  done
  return 143
}

serve_until_ended() { # until the learners' job says so, or is gone
  local answer job looked=$SECONDS
  while [[ ! $leaving && ! -e $cluster/ended ]]; do
    pause 2
    ((SECONDS - looked > 60)) && [[ -s $cluster/learners_job ]] || continue
    looked=$SECONDS job=$(<"$cluster/learners_job")
    answer=$(squeue --noheader --jobs="$job" 2>&1) && [[ $answer ]] && continue
    if [[ ! $answer || $answer == *'Invalid job id'* ]]; then # not where squeue could not ask
      say "job $job of the learners is gone"
      return 0
    fi
  done
}

code=0
if ((num_servers > 0)) && [[ $role != learners ]]; then start_servers || code=$?; fi
if ((code == 0)); then
  if [[ $role == servers ]]; then
    serve_until_ended
  else
    train "$@"
    code=$?
  fi
fi
end_servers
if [[ $leaving == USR1 ]] && ! [[ $role != servers && $code =~ ^[02]$ ]]; then
  job=$SLURM_JOB_ID
  [[ ${SLURM_ARRAY_JOB_ID:-} ]] && job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
  say "out of time: job $job goes back into the queue"
  scontrol requeue "$job" || code=1
elif [[ $role == learners ]]; then
  touch "$cluster/ended"
fi
exit "$code"
