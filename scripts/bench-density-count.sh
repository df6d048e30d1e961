#!/usr/bin/env bash
# How many flux-vm VMs of one size fit on a host: boots them one at a time until a create is refused, the host's
# MemAvailable would fall below a floor, or MAX is reached. Prints a JSON summary on standard output, progress on
# standard error. It takes the host's memory, so it runs only with FLUXVM_BENCH_CONFIRM=1, and it deletes on exit what
# it made, by id, and nothing else.
#
#   FLUXVM_BENCH_CONFIRM=1 MODE=BASELINE IMAGE=/images/tiny scripts/bench-density-count.sh
#   FLUXVM_BENCH_CONFIRM=1 MODE=TUNED    IMAGE=/images/tiny scripts/bench-density-count.sh --accel tcg
#
#   --accel kvm   (the default) skips where there is no /dev/kvm
#   --accel tcg   runs without it; the summary says so: such figures compare with others of the kind only
#
# MODE is a label for the daemon's configuration, which this script cannot change:
#   BASELINE  [sandbox] idle_balloon_secs = 0, and FLUXVM_KVM_EAGER_RESTORE=1 in the daemon's environment
#   TUNED     idle_balloon_secs above 0, and the default lazy, copy-on-write restore
# With FLUXVM_CONFIG naming the daemon's file, idle_balloon_secs is checked against MODE.
#
# Environment: MEM_MIB (256), MAX (20), MIN_AVAIL_MIB (2048; 512 at least), SETTLE_SECS (5), IMAGE (default the host's for
# sandboxes), KERNEL (a kernel to boot with IMAGE's initrd), FLUXVM_API, FLUXVM_TOKEN, FLUXVM_CONFIG.
# Exit codes: 0 done or skipped, 1 failed, 2 wrong usage or a contradiction between MODE and FLUXVM_CONFIG.
set -euo pipefail
export LC_ALL=C

say() { printf 'bench-density: %s\n' "$*" >&2; }
usage() { say "$*"; exit 2; }
fail() { say "$*"; exit 1; }

accel=kvm
while [ $# -gt 0 ]; do
	case $1 in
	--accel) accel=${2:-}; shift; [ $# -gt 0 ] && shift ;;
	--accel=*) accel=${1#*=}; shift ;;
	-h | --help) sed -n '2,/^set -/p' "$0" | sed '$d; s/^# \{0,1\}//'; exit ;;
	*) usage "no use for $1; see --help" ;;
	esac
done
[ "$accel" = kvm ] || [ "$accel" = tcg ] || usage "--accel must be kvm or tcg, not '$accel'"

mode=${MODE:-} mem=${MEM_MIB:-256} max=${MAX:-20} floor=${MIN_AVAIL_MIB:-2048} settle=${SETTLE_SECS:-5}
api=${FLUXVM_API:-http://127.0.0.1:7788} image=${IMAGE:-} kernel=${KERNEL:-}
api=${api%/}
[ "$mode" = BASELINE ] || [ "$mode" = TUNED ] || usage "set MODE to BASELINE or TUNED, to say how the daemon is configured"
for name in MEM_MIB:$mem MAX:$max MIN_AVAIL_MIB:$floor SETTLE_SECS:$settle; do
	[[ ${name#*:} =~ ^[0-9]{1,7}$ ]] || usage "${name%%:*} must be a whole number, not '${name#*:}'"
done
[ "$floor" -ge 512 ] || usage "MIN_AVAIL_MIB=$floor is too low: at least 512 MiB must be left to the host"
[ "$mem" -ge 1 ] && [ "$max" -ge 1 ] || usage "MEM_MIB and MAX must be at least 1"
[ "${FLUXVM_BENCH_CONFIRM:-}" = 1 ] || usage "this takes the host's memory, $max VMs of $mem MiB at most: set FLUXVM_BENCH_CONFIRM=1 to run it"
for program in curl jq awk; do command -v "$program" >/dev/null || fail "$program is missing; install it"; done
if [ "$(uname -s)" != Linux ]; then
	say "skipped: this needs Linux"
	exit 0
fi
if [ "$accel" = kvm ] && [ ! -e /dev/kvm ]; then
	say "skipped: there is no /dev/kvm; --accel tcg runs without it"
	exit 0
fi

# An image is a directory with vmlinuz and initrd: another kernel makes another one.
scratch=
if [ -n "$kernel" ]; then
	[ -n "$image" ] || usage "KERNEL needs IMAGE: the directory whose initrd is booted with it"
	[ -r "$kernel" ] || usage "KERNEL=$kernel cannot be read"
	scratch=$(mktemp -d)
	trap 'rm -rf "$scratch"' EXIT
	for file in initrd initrd.img image.json; do [ ! -e "$image/$file" ] || ln -s "$(realpath "$image/$file")" "$scratch/$file"; done
	ln -s "$(realpath "$kernel")" "$scratch/vmlinuz"
	image=$scratch
fi

# Whether the daemon is configured as MODE says.
check=not_run
if [ -n "${FLUXVM_CONFIG:-}" ]; then
	[ -r "$FLUXVM_CONFIG" ] || usage "FLUXVM_CONFIG=$FLUXVM_CONFIG cannot be read"
	idle=$(awk '/^[ \t]*\[/ { s = $0; gsub(/[][ \t\r]/, "", s); sub(/#.*/, "", s) }
		s == "sandbox" && /^[ \t]*idle_balloon_secs[ \t]*=/ { v = $0; sub(/[^=]*=/, "", v); sub(/#.*/, "", v); gsub(/[ \t\r_]/, "", v) }
		END { print v == "" ? 0 : v }' "$FLUXVM_CONFIG")
	[[ $idle =~ ^[0-9]+$ ]] || usage "idle_balloon_secs in $FLUXVM_CONFIG is '$idle', which is no number"
	if [ "$mode" = BASELINE ] && [ "$idle" -ne 0 ]; then
		usage "MODE=BASELINE, but idle_balloon_secs is $idle in $FLUXVM_CONFIG: set it to 0 and restart the daemon, or use MODE=TUNED"
	fi
	if [ "$mode" = TUNED ] && [ "$idle" -eq 0 ]; then
		usage "MODE=TUNED, but idle_balloon_secs is 0 in $FLUXVM_CONFIG: set it and restart the daemon, or use MODE=BASELINE"
	fi
	check=ok
fi

# call METHOD PATH [BODY]: sets $status and $answer.
call() {
	local args=(-sS -m 900 -X "$1" -w '\n%{http_code}' -H 'Content-Type: application/json') out
	[ -z "${FLUXVM_TOKEN:-}" ] || args+=(-H "Authorization: Bearer $FLUXVM_TOKEN")
	[ $# -lt 3 ] || args+=(--data-binary "$3")
	out=$(curl "${args[@]}" "$api$2") || { status=000 answer=; return 1; }
	status=${out##*$'\n'} answer=${out%$'\n'*}
}

available() {
	call GET /v1/host/memory || fail "no daemon answers at $api; start one, or set FLUXVM_API"
	[ "$status" = 200 ] || fail "GET /v1/host/memory answers $status: $answer"
	jq -e .mem_available_mib <<<"$answer"
}

made=()
cleanup() {
	local id
	[ -z "$scratch" ] || rm -rf "$scratch"
	[ ${#made[@]} -eq 0 ] || say "deleting the ${#made[@]} VMs it made"
	for id in "${made[@]+"${made[@]}"}"; do
		call DELETE "/v1/vms/$id" && [[ $status =~ ^(204|404)$ ]] || say "VM $id is still there; delete it: fluxctl vm rm $id"
	done
}
trap cleanup EXIT
trap 'exit 1' INT TERM

uuid() { cat /proc/sys/kernel/random/uuid; }

start=$(available)
[ "$start" -ge "$floor" ] || fail "$start MiB are available, below MIN_AVAIL_MIB=$floor already: nothing was started"
reason=max_reached refusal=
while [ ${#made[@]} -lt "$max" ]; do
	now=$(available)
	if [ $((now - mem)) -lt "$floor" ]; then
		reason=below_floor
		break
	fi
	id=$(uuid)
	made+=("$id") # before the create: its answer may be lost
	body=$(jq -n --arg id "$id" --arg image "$image" --argjson mem "$mem" \
		'{id: $id, name: ("bench-" + $id[0:8]), backend: "flux-vm", memory_mib: $mem} + (if $image == "" then {} else {image: $image} end)')
	call POST /v1/sandboxes "$body" || fail "the daemon at $api does not answer any more"
	if [[ ! $status =~ ^20[01]$ ]]; then
		unset 'made[-1]'
		reason=create_refused refusal=$(jq -r '.detail // .' <<<"$answer" 2>/dev/null || printf '%s' "$answer")
		say "create refused ($status): $refusal"
		break
	fi
	for ((i = 0; ; i++)); do
		call GET "/v1/vms/$id" || fail "the daemon at $api does not answer any more"
		[ "$(jq -r .agent <<<"$answer")" != true ] || break
		[ "$(jq -r .state <<<"$answer")" != failed ] || fail "VM $id failed: $(jq -r .reason <<<"$answer")"
		[ "$i" -lt 3000 ] || fail "VM $id has no agent after ten minutes"
		sleep 0.2
	done
	say "${#made[@]} VMs run, $(available) MiB available"
done
sleep "$settle"
end=$(available)

per=[]
for id in "${made[@]+"${made[@]}"}"; do
	call GET "/v1/vms/$id/memory" || fail "the daemon at $api does not answer any more"
	per=$(jq --argjson m "$answer" '. + [{vm_id: $m.vm_id, pss_kib: $m.usage.pss_kib, private_kib: $m.usage.private_kib, rss_kib: $m.usage.rss_kib, balloon_target_mib: $m.balloon.target_mib, balloon_actual_mib: $m.balloon.actual_mib}]' <<<"$per")
done
jq -n --arg mode "$mode" --arg reason "$reason" --arg check "$check" --arg accel "$accel" --arg refusal "$refusal" \
	--argjson mem "$mem" --argjson start "$start" --argjson finish "$end" --argjson per "$per" '
	($per | length) as $n | ([$per[].pss_kib // 0] | add // 0) as $pss |
	{mode: $mode, accel: $accel, mem_mib: $mem, count: $n, stop_reason: $reason}
	+ (if $refusal == "" then {} else {refusal: $refusal} end)
	+ {host_mem_available_start_mib: $start, host_mem_available_end_mib: $finish, host_mem_available_delta_mib: ($start - $finish),
	host_delta_per_vm_mib: (if $n == 0 then 0 else (($start - $finish) * 10 / $n | round / 10) end),
	pss_avg_kib: (if $n == 0 then 0 else ($pss / $n | round) end), pss_total_kib: $pss, mode_config_check: $check, per_vm: $per}
	+ (if $accel == "tcg" then {note: "guests are emulated (tcg): each VM holds 50 to 110 MiB more than under KVM, and figures compare with others of the kind only"} else {} end)'
