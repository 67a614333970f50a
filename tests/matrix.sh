#!/bin/sh
# Build the environment of `make matrix`: matrix.sh TORCH FOLDER. What is there already is kept.
set -eu
torch=$1 folder=$2
pip="$folder/bin/python -m pip install --quiet --disable-pip-version-check"
if [ -e "$folder/.installed" ]; then exit 0; fi
echo "Installing torch $torch into $folder (some 6 GB, ten minutes)"
[ -x "$folder/bin/python" ] || "${PYTHON:-python3}" -m venv "$folder"
$pip "torch==$torch"
# torch chooses its own dependencies; the rest is as in constraints.txt, and cannot replace what torch chose.
"$folder/bin/python" -m pip freeze --all --disable-pip-version-check --exclude torchatlas --exclude torchvision >"$folder/torch.txt"
awk -F '==' '{ name = tolower($1); gsub(/_/, "-", name) }
             NR == FNR { taken[name] = 1; print; next }
             !(name in taken || name ~ /^(torch|torchvision)$/)' "$folder/torch.txt" constraints.txt >"$folder/constraints.txt"
$pip --constraint "$folder/constraints.txt" hatchling editables
$pip --constraint "$folder/constraints.txt" --no-build-isolation --editable '.[dev]'
$pip --no-deps HolisticTraceAnalysis
# torchvision 0.N+15 belongs to torch 2.N. While there is none yet, the newest: its Python works without its operators.
minor=${torch#*.}
$pip --no-deps "torchvision==0.$((${minor%%.*} + 15)).*" || $pip --no-deps torchvision
touch "$folder/.installed"
