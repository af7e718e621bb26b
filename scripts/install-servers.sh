#!/usr/bin/env bash
# Install the test servers that PyPI does not carry. Without root the tests that need them
# are skipped, so this fails only under CI=true, where a skipped test would hide a gap.
set -euo pipefail

missing=()
needs() { PATH="$PATH:/usr/sbin" command -v "$1" >/dev/null || missing+=("$2"); }
needs pgbouncer pgbouncer
needs rabbitmq-server rabbitmq-server
needs redis-server redis-server
needs promtool prometheus
needs faketime faketime
needs java default-jre-headless
# A second PostgreSQL, older than the packaged one.
compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null || missing+=(postgresql)
[ ${#missing[@]} -eq 0 ] && exit 0

give_up() {
    echo "install-servers: ${missing[*]} not installed: $1" >&2
    [ "${CI:-}" = true ] && exit 1
    exit 0
}

[ "$(id -u)" -eq 0 ] || give_up "not root"
command -v apt-get >/dev/null || give_up "no apt-get"

# RUNLEVEL=1 keeps the packages from starting system services of their own.
export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
install=(apt-get install -y -qq --no-install-recommends "${missing[@]}")
if ! "${install[@]}" >/dev/null 2>&1; then
    # The package index may be stale or absent (fresh containers): refresh it once.
    apt-get update -qq >/dev/null 2>&1 || give_up "apt-get update failed"
    "${install[@]}" >/dev/null 2>&1 || give_up "apt-get install failed"
fi
