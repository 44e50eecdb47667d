#!/usr/bin/env bash
# Makes .venv and installs vitrail into it with the extra named on the command line: demo, test or dev.
# Does nothing when that is already done and neither pyproject.toml nor constraints.txt has changed since.
set -euo pipefail
cd "$(dirname "$0")/.."

extra=${1:?usage: scripts/setup.sh demo|test|dev}
python=${PYTHON:-python3}
stamp=.venv/.installed-$extra

fail() { echo "vitrail: $*" >&2; exit 1; }

works() { command -v "$1" >/dev/null && "$1" --version >/dev/null 2>&1; }

is_recent() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

# The stamp holds the checkout's path: after a copy or a move, the editable install would still point at the old place.
up_to_date() {
    [ -x .venv/bin/python ] && [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$PWD" ] &&
        ! [ pyproject.toml -nt "$stamp" ] && ! [ constraints.txt -nt "$stamp" ]
}

choose_python() {
    is_recent "$python" && return
    # Only the default may be replaced; a Python that was asked for by name is used or refused.
    if [ "$python" = python3 ]; then
        for python in python3.13 python3.12 python3.11 python3.14; do
            is_recent "$python" && return
        done
        fail "Python 3.11 or newer is needed, and python3 is $(python3 --version 2>/dev/null || echo missing);" \
            "install one, then run: make PYTHON=/path/to/python"
    fi
    fail "PYTHON=$python is not a working Python 3.11 or newer; name one that is, or leave PYTHON out."
}

# Where this may be done: as root, or with a sudo that asks for no password.
install_debian() {
    local package=$1 as_root=
    command -v apt-get >/dev/null || return 1
    if [ "$(id -u)" -ne 0 ]; then
        sudo -n true 2>/dev/null || return 1
        as_root="sudo -n"
    fi
    echo "vitrail: installing $package"
    $as_root apt-get install -y -qq "$package" >/dev/null 2>&1 ||
        { $as_root apt-get update -qq && $as_root apt-get install -y -qq "$package"; } >/dev/null
}

# Debian and Ubuntu ship Python without what `python3 -m venv` needs, in a package of its own.
make_venv() {
    choose_python
    echo "vitrail: making .venv with $("$python" --version)"
    "$python" -m venv --clear .venv >/dev/null 2>&1 && return
    # With uv at hand, pip is not needed inside the environment.
    works uv && "$python" -m venv --clear --without-pip .venv >/dev/null 2>&1 && return
    local package
    package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
    install_debian "$package" && "$python" -m venv --clear .venv >/dev/null && return
    rm -rf .venv
    fail "$python cannot make a virtual environment; as root, run: apt-get install $package"
}

# The Studio is tested in a real browser. Nothing else needs one, so that its absence is said and no error.
have_browser() {
    local name
    for name in ${VITRAIL_BROWSER:-} chromium chromium-browser google-chrome; do
        works "$name" && return
    done
    return 1
}

find_browser() {
    have_browser && return
    # Tried once for each .venv: without a network, a second try would only take as long again.
    if ! [ -f .venv/.browser-tried ]; then
        mkdir -p .venv && touch .venv/.browser-tried
        install_debian chromium 2>/dev/null || true
        have_browser && return
    fi
    echo "vitrail: there is no Chromium on this machine and it could not be installed, so the Studio's tests in a" \
        "browser are left out; as root, run: apt-get install chromium"
}

choose_uv() {
    uv=uv
    works uv && return
    uv=.venv/bin/uv
    works $uv && return
    .venv/bin/python -m pip --version >/dev/null 2>&1 || make_venv
    echo "vitrail: installing uv into .venv"
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt uv
}

if up_to_date; then
    [ "$extra" = test ] && find_browser
    exit 0
fi

is_recent .venv/bin/python || make_venv
choose_uv
[ "$extra" = test ] && find_browser

# uv links packages from its cache, which cannot be done across file systems: copy there, rather than warn.
cache=$("$uv" cache dir)
mkdir -p "$cache"
if [ "$(stat -c %d "$cache" 2>/dev/null)" != "$(stat -c %d .venv 2>/dev/null)" ]; then
    export UV_LINK_MODE=${UV_LINK_MODE:-copy}
fi

echo "vitrail: installing the packages of .[$extra] (the first time, PyTorch makes this a large download)"
quiet=--quiet
[ -t 2 ] && quiet=  # on a terminal, uv shows the downloads as they go
"$uv" pip install $quiet --python .venv/bin/python --editable ".[$extra]" \
    --constraints constraints.txt --build-constraints constraints.txt
echo "$PWD" >"$stamp"
