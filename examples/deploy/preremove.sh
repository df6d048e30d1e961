#!/bin/sh
# Before the package goes, and not before an upgrade: its services end and are none any more. VMs, data and configuration
# stay.
set -e
if [ "$1" = remove ] || [ "$1" = 0 ]; then
  if [ -d /run/systemd/system ]; then now=--now; else now=; fi
  if command -v systemctl >/dev/null 2>&1; then systemctl --no-reload disable $now fluxvm-node.service fluxvm-central.service >/dev/null 2>&1 || true; fi
fi
