#!/bin/sh
# After installing or upgrading: the user of central. Services that run are not touched: the new program is theirs at
# their next start, and VMs go on meanwhile.
set -e
if command -v systemd-sysusers >/dev/null 2>&1; then systemd-sysusers fluxvm.conf || true; fi
if [ -d /run/systemd/system ]; then systemctl daemon-reload || true; fi
