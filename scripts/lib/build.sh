# shellcheck shell=bash
# Makes .venv, or brings it up to date. Sourced by setup.sh when there is something to do.

# Runs a step with its output in the log; on failure names the log and its last line.
setup_step() {
    local text=$1 last
    shift
    say "$text"
    printf '\n== %s\n' "$text" >>"$log"
    "$@" >>"$log" 2>&1 </dev/null && return 0
    last=$(grep -v '^[[:space:]]*$' "$log" | tail -n 1)
    setup_restore
    die "$text failed: $last" "see $log; mend the cause (is there a network?) and start again"
}

setup_venv() {
    "$python" -I -m venv "$venv" || return
    # Python 3.11 brings setuptools, which nothing here needs and which runs a hook at every start.
    "$venv/bin/python" -I -m pip uninstall --yes setuptools
}

setup_pip() {
    PIP_USER=0 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 "$venv/bin/python" -I -m pip install "$@"
}

old_stamp_run='' old_stamp_dev=''

# While pip works no stamp stands: if it is killed, the next start makes .venv anew.
setup_unstamp() {
    setup_read_stamp run
    old_stamp_run=$stamp
    setup_read_stamp dev
    old_stamp_dev=$stamp
    rm -f -- "$venv/.stamp-run" "$venv/.stamp-dev"
}

# pip failed by itself, which leaves what was there: the old state still stands (and is still out of date).
setup_restore() {
    if [[ -n $old_stamp_run ]]; then printf %s "$old_stamp_run" >"$venv/.stamp-run"; fi
    if [[ -n $old_stamp_dev ]]; then printf %s "$old_stamp_dev" >"$venv/.stamp-dev"; fi
}

# $1: kind, $2: its key as it was before the work began, so that a lock file changed meanwhile is noticed.
setup_stamp() {
    printf '%s\nsite=%s\npython=%s\nrequested=%s\n' \
        "$2" "${site#"$venv"/}" "$python $python_version" "${SYSMETER_PYTHON-}" >"$venv/.stamp-$1.new"
    mv -f -- "$venv/.stamp-$1.new" "$venv/.stamp-$1"
}

# The checkout was moved or copied: the scripts in .venv/bin and the project's .pth name the old place.
setup_relocate() {
    "$python" -I -m venv --without-pip "$venv" || return
    "$venv/bin/python" -I - "$venv/bin" "$1/.venv/bin/" "$venv/bin/" <<'PYTHON'
import os, pathlib, sys
folder, old, new = sys.argv[1:]
for path in pathlib.Path(folder).iterdir():
    if path.is_symlink() or not path.is_file():
        continue
    data = path.read_bytes()
    head, tail = data[:4096], data[4096:]
    if head.startswith(b"#!"):
        path.write_bytes(head.replace(os.fsencode(old), os.fsencode(new)) + tail)
PYTHON
}

setup_build() {
    local kind=$1 old_root='' lock=requirements.lock key_run key_dev
    setup_key run
    key_run=$key
    if [[ $kind == dev ]]; then
        lock=requirements-dev.lock
        setup_key dev
        key_dev=$key
    fi

    # Can the environment that is there be brought up to date? The stamp of either kind says from what.
    setup_read_stamp run
    if [[ -z $stamp ]]; then setup_read_stamp dev; fi
    if [[ -n $stamp && -x $venv/bin/python && $stamp == "format=$setup_format"$'\n'root=* ]]; then
        python=${stamp_python% *} python_version=${stamp_python##* }
        old_root=${stamp#*root=} old_root=${old_root%%$'\n'*}
        if [[ -n ${SYSMETER_PYTHON-} && $SYSMETER_PYTHON != "$stamp_requested" ]]; then
            setup_choose_python
            if [[ "$python $python_version" != "$stamp_python" ]]; then stamp=''; fi
        fi
    else
        stamp=''
    fi

    if [[ -z $stamp ]]; then
        setup_choose_python
        say "setting up $venv (once; log: .venv/setup.log)"
        rm -rf -- "$venv"
        mkdir -- "$venv"
        : >"$log"
        setup_provide_ensurepip
        setup_step "making a virtual environment with $python ($python_version)" setup_venv
    else
        say "bringing $venv up to date (log: .venv/setup.log)"
        : >"$log"
        setup_unstamp
        if [[ $old_root != "$root" ]]; then
            setup_step "moving the environment here from $old_root" setup_relocate "$old_root"
        fi
    fi
    site=$venv/lib/python${python_version%.*}/site-packages

    setup_step "installing the locked dependencies ($lock)" setup_pip --require-hashes -r "$root/$lock"
    setup_step 'installing sysmeter (editable)' setup_pip --no-deps --no-build-isolation --editable "$root"
    setup_link_bcc
    if [[ $kind == dev ]]; then setup_stamp dev "$key_dev"; fi
    setup_stamp run "$key_run"
}
