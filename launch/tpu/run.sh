#!/bin/bash
# One training run on Cloud TPUs, from a machine that has gcloud: learners on a slice, JAX-engine servers on others.
#
#   launch/tpu/run.sh run --name=hard --zone=us-east5-a --accelerator_type=v5p-128 --servers=16 --server_type=v5p-8 \
#       --setup='git clone --quiet URL isocompute; cd isocompute && make setup PYTHON=python3.12 EXTRAS=train,serve,tpu' \
#       --model=/mnt/runs/models/base --workdir=/mnt/runs/hard --token_file=token \
#       -- --config=configs/isocompute_hard_qwen2_5_7b.py --config.mesh.data=4 --config.mesh.fsdp=16
#
#   run     queue the slices, prepare their VMs, start servers and learners, and stay until the learners are done; a slice
#           that is preempted is queued anew, and the run resumes from its last checkpoint. Stopped here (Ctrl-C), the
#           run goes on there: `run` again follows it.
#   stop    end the run's processes, with a last checkpoint; the slices stay, and cost
#   down    give the slices back
#
# What stands after `--` are flags of isocompute_jax.train. Slices are queued resources: NAME, and NAME-server-0 onwards.
#
#   --name=NAME  --zone=ZONE  --project=PROJECT    the project is that of gcloud by default
#   --accelerator_type=TYPE     of the learners' slice: one process on each of its VMs
#   --servers=0  --server_type=TYPE    servers, each on a slice of one VM; 0: the learner samples in its own process
#   --runtime_version=v2-alpha-tpuv5
#   --create_args='--spot ...'  more flags of `gcloud compute tpus queued-resources create`
#   --setup=COMMAND             run once on every VM: installs the package, mounts storage
#   --directory=isocompute      checkout that --setup leaves, in which commands are run
#   --python=.venv/bin/python
#   --workdir=DIR               run directory, on storage that all VMs share
#   --model=DIR                 Hugging Face directory that the servers load
#   --server_args='--flag=value ...'    of isocompute_jax.serve; --insecure is given unless --tls_cert is
#   --token_file=FILE           on this machine: the token that weight updates need, copied to the VMs
#   --port=50051  --poll_s=60
set -uo pipefail
umask 077

fail() { # CODE MESSAGE...
  local code=$1
  shift
  echo "error: $*" >&2
  exit "$code"
}

say() { echo "$(date +%T) $*" >&2; }

name='' zone='' project='' accelerator_type='' servers=0 server_type='' runtime_version=v2-alpha-tpuv5 create_args=''
setup=true directory=isocompute python=.venv/bin/python workdir='' model='' server_args='' token_file=''
port=50051 poll_s=60
here=$(dirname "${BASH_SOURCE[0]}")

known=' name zone project accelerator_type servers server_type runtime_version create_args setup directory python '
known+='workdir model server_args token_file port poll_s '
task=${1:-}
[[ $task == run || $task == stop || $task == down ]] || fail 2 'say what to do: run, stop or down'
shift
while (($#)) && [[ $1 != -- ]]; do
  flag=${1%%=*} flag=${flag#--}
  [[ $1 == --*=* && $known == *" $flag "* ]] || fail 2 "unknown flag $1; the head of launch/tpu/run.sh lists them"
  printf -v "$flag" %s "${1#*=}"
  shift
done
(($#)) && shift
for flag in name zone; do [[ ${!flag} ]] || fail 2 "--$flag is missing"; done
[[ $servers =~ ^[0-9]+$ ]] || fail 2 "--servers=$servers: must be a whole number"
if [[ $task == run ]]; then
  for flag in accelerator_type workdir; do [[ ${!flag} ]] || fail 2 "--$flag is missing"; done
  if ((servers > 0)); then
    for flag in server_type model token_file; do [[ ${!flag} ]] || fail 2 "--$flag is missing: --servers needs it"; done
    [[ -s $token_file ]] || fail 2 "--token_file=$token_file: no such file, or nothing in it"
    [[ $(/bin/ls -lLd "$token_file") == ????------* ]] || fail 2 "--token_file=$token_file: other users can read it: chmod 600 it"
  fi
fi
command -v gcloud >/dev/null || fail 2 'gcloud is not installed, or not on PATH'
read -ra more_create <<<"$create_args"
read -ra more_serve <<<"$server_args"
slices=("$name")
for ((i = 0; i < servers; i++)); do slices+=("$name-server-$i"); done
remote=.isocompute/$name # in the home of every VM

tpus() { gcloud --quiet compute tpus "$@" --zone="$zone" ${project:+--project="$project"}; }

errors=$(mktemp -d) || fail 1 'no temporary folder can be made'
trap 'rm -rf "$errors"' EXIT

state() { # SLICE; sets `now`, empty where there is no such slice, or fails and sets `why`, where gcloud does not say
  local file=$errors/$BASHPID
  now=$(tpus queued-resources describe "$1" --format='value(state.state)' 2>"$file") && return 0
  why=$(<"$file")
  [[ $why == *NOT_FOUND* ]]
}

unknown='gcloud does not say whether there is a slice'
answered=''
refused=2 # exit code of what gcloud refuses: bad input, until every slice was once there

on() { # SLICE WORKERS COMMAND
  tpus tpu-vm ssh "$1" --worker="$2" --command="$3"
}

queue() { # returns when every slice is there
  local slice now why said='' waiting
  while :; do
    waiting=()
    for slice in "${slices[@]}"; do
      if ! state "$slice"; then # later it may be the network, and what was started goes on
        [[ $answered ]] || fail 2 "$unknown $slice: $why"
        waiting+=("$unknown $slice: $why")
        continue
      fi
      answered=yes
      case $now in
        ACTIVE) continue ;;
        FAILED | SUSPENDED)
          say "$slice: $now; queued anew"
          why=$(tpus queued-resources delete "$slice" --force 2>&1 >/dev/null) ||
            fail "$refused" "$slice cannot be deleted: $why"
          prepared=${prepared/ $slice / }
          ;;
        ?*) waiting+=("$slice: $now") ;;
      esac
      [[ ! $now || $now == FAILED || $now == SUSPENDED ]] || continue
      local type=$server_type
      [[ $slice == "$name" ]] && type=$accelerator_type
      why=$(tpus queued-resources create "$slice" --node-id="$slice" --accelerator-type="$type" \
        --runtime-version="$runtime_version" "${more_create[@]}" 2>&1 >/dev/null) ||
        fail "$refused" "$slice cannot be queued: $why${waiting[*]:+ (launch/tpu/run.sh down gives the others back)}"
      waiting+=("$slice: queued")
    done
    ((${#waiting[@]})) || return 0
    [[ ${waiting[*]} == "$said" ]] || say "${waiting[*]}"
    said=${waiting[*]}
    sleep "$poll_s"
  done
}

prepared=' '
prepare() { # SLICE: what its VMs need, once
  [[ $prepared == *" $1 "* ]] && return 0
  local files=("$here/worker.sh")
  ((servers > 0)) && files+=("$token_file")
  on "$1" all "umask 077; mkdir -p $remote; test -e $remote/ready || { ($setup) && touch $remote/ready; }" &&
    tpus tpu-vm scp "${files[@]}" "$1:$remote/" --worker=all || return 1
  prepared+="$1 "
}

start() { # SLICE ROLE COMMAND: COMMAND as a shell reads it, on every VM
  local worker="bash \$HOME/$remote/worker.sh $2 \$HOME/$remote/run $3"
  on "$1" all "rm -f $remote/run/code; ISOCOMPUTE_DIRECTORY=\$HOME/$directory setsid nohup $worker >/dev/null 2>&1 </dev/null & sleep 0.1"
}

start_all() { # FLAGS of the learner
  local i slice address addresses=() service='' token command
  token="\$HOME/$remote/$(basename "${token_file:-token}")"
  for slice in "${slices[@]}"; do prepare "$slice" || return 1; done
  [[ $server_args == *--tls_cert* ]] || more_serve+=(--insecure)
  for ((i = 0; i < servers; i++)); do
    address=$(tpus tpu-vm describe "$name-server-$i" --format='value(networkEndpoints[0].ipAddress)') || return 1
    addresses+=("$address:$port")
    command=$(printf '%q ' "$python" -m isocompute_jax.serve --engine=jax "--model=$model" --host=0.0.0.0 \
      "--port=$port" --wait_for_weights "${more_serve[@]}")
    start "$name-server-$i" server "$command --token_file=$token" || return 1
  done
  if ((servers > 0)); then
    service="--config.service.endpoints=$(IFS=, && echo "${addresses[*]}") --config.service.token_file=$token"
  fi
  command=$(printf '%q ' "$python" -m isocompute_jax.train "--workdir=$workdir" "$@")
  start "$name" learner "$command $service"
}

lost() { # the first slice that is not there any more
  local slice now why
  for slice in "${slices[@]}"; do
    state "$slice" || { say "$unknown $slice: $why" && continue; }
    [[ $now == ACTIVE ]] || { echo "$slice" && return 0; }
  done
  return 1
}

for_all() { # COMMAND: with every slice that there is, and its state, all at once
  local slice now why jobs=() failed=()
  for slice in "${slices[@]}"; do
    {
      state "$slice" || fail 2 "$unknown $slice: $why"
      [[ ! $now ]] || "$1" "$slice" "$now"
    } &
    jobs+=("$!")
  done
  for ((i = 0; i < ${#slices[@]}; i++)); do wait "${jobs[i]}" || failed+=("${slices[i]}"); done
  ((!${#failed[@]})) || fail 2 "$task failed for ${failed[*]}, as said above"
}

stop() { [[ $2 != ACTIVE ]] || on "$1" all "bash $remote/worker.sh stop $remote/run"; }

give_back() { tpus queued-resources delete "$1" --force; }

case $task in
  stop) for_all stop ;;
  down) for_all give_back ;;
  run)
    code=''
    until [[ $code ]]; do
      queue
      refused=1
      start_all "$@" || { say 'a VM could not be reached, or its --setup failed; again' && sleep "$poll_s" && continue; }
      say "started; log: gcloud compute tpus tpu-vm ssh $name --zone=$zone --worker=0 --command='tail -f $remote/run/log'"
      until gone=$(lost) || [[ $code ]]; do
        sleep "$poll_s"
        code=$(on "$name" 0 "cat $remote/run/code 2>/dev/null" 2>/dev/null)
      done
      [[ $code ]] || say "$gone is gone: what it ran starts again"
    done
    on "$name" 0 "tail -n 5 $remote/run/log" >&2
    for slice in "${slices[@]:1}"; do on "$slice" all "bash $remote/worker.sh stop $remote/run" & done
    wait
    say "the learners have ended with exit code $code; launch/tpu/run.sh down gives the slices back"
    exit "$code"
    ;;
esac
