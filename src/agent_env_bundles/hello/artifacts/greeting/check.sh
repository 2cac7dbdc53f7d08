#!/usr/bin/env bash
# Succeeds when the greeting lies beside this script and greets.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
read -r greeting < hello.txt
[[ $greeting == hello* ]]
