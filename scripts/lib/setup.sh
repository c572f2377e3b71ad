# shellcheck shell=bash
# The environment of the project: .venv with the locked dependencies, the project itself (editable), and a
# link to the distribution's bcc package. Sourced by scripts/sysmeter and scripts/test, which set `root`
# (the checkout, physical path) and call `setup_environment run|dev [arguments of the command]`.
# What this needs when there is something to do is in host.sh and build.sh beside it.
#
# What is complete is told by .venv/.stamp-run and .venv/.stamp-dev, each written last and naming what it was
# made from. No stamp at all means that a set-up was cut short: .venv is then made anew. A stamp that names
# other inputs (a new lock file) is brought up to date in place. The usual path forks one sha256sum.
#
# Variables for users: SYSMETER_PYTHON (interpreter to use), SYSMETER_BCC_DIRS (folders, parted by colons, to
# look for the bcc package in, in place of the distributions' usual ones). For tests: SYSMETER_OS_RELEASE (a
# file in place of /etc/os-release).

setup_format=1
setup_min_minor=11 # Python 3.11 …
setup_max_minor=14 # … to 3.14: numba has no wheels for others

venv=$root/.venv

say() { printf 'sysmeter: %s\n' "$*" >&2; }

die() {
    say "error: $1"
    if [[ -n ${2-} ]]; then say "       $2"; fi
    exit 1
}

# Sets `key`: what a complete environment of this kind must have been made from.
setup_key() {
    local files=(pyproject.toml requirements.lock)
    if [[ $1 == dev ]]; then files+=(requirements-dev.lock); fi
    key="format=$setup_format"$'\n'"root=$root"$'\n'$(cd -- "$root" && exec sha256sum -- "${files[@]}") ||
        die "cannot read pyproject.toml and the lock files in $root" "the checkout is incomplete"
}

# Sets `stamp` (empty if there is none), `site` and `stamp_python`.
setup_read_stamp() {
    stamp='' site='' stamp_python='' stamp_requested=''
    if [[ -r $venv/.stamp-$1 ]]; then IFS= read -r -d '' stamp <"$venv/.stamp-$1" || true; fi
    if [[ $stamp =~ $'\n'site=([^$'\n']+)$'\n'python=([^$'\n']+)$'\n'requested=([^$'\n']*)$'\n' ]]; then
        site=$venv/${BASH_REMATCH[1]}
        stamp_python=${BASH_REMATCH[2]}
        stamp_requested=${BASH_REMATCH[3]}
    else
        stamp=''
    fi
}

# .venv/bin/python links to the versioned interpreter (…/python3.11), so it dangles once that is gone.
setup_ready() {
    setup_key "$1"
    setup_read_stamp "$1"
    [[ $stamp == "$key"$'\n'* && -x $venv/bin/python ]] || return 1
    [[ -z ${SYSMETER_PYTHON-} || $SYSMETER_PYTHON == "$stamp_requested" ]]
}

setup_lock() {
    local lock=$root/.setup.lock
    # Read-only is enough for flock, so a file that root made serves other users as well.
    if [[ ! -e $lock ]]; then : >>"$lock"; fi
    exec 9<"$lock"
    if ! type -P flock >/dev/null; then
        say 'warning: there is no flock command, so two starts at once are not kept apart'
        return 0
    fi
    if ! flock -n 9; then
        say 'another start is setting up this checkout; waiting for it'
        flock 9
    fi
}

setup_unlock() { exec 9<&-; }

# For a command that may need bcc, or never does. Options before a command (--help) need none.
setup_wants_bcc() {
    local word
    case ${1-} in
    '' | -* | report | diagnose | compare | export | feed | probes | hist | omission | checklist) return 1 ;;
    esac
    for word; do
        if [[ $word == --no-probes || $word == --help ]]; then return 1; fi
    done
}

setup_load() {
    # shellcheck source=scripts/lib/host.sh
    source "$root/scripts/lib/host.sh"
    # shellcheck source=scripts/lib/build.sh
    source "$root/scripts/lib/build.sh"
}

setup_environment() {
    local kind=$1 old_umask
    shift
    log=$venv/setup.log
    if setup_ready "$kind"; then
        if [[ -e $site/capstone ]]; then
            die "another project's capstone (a disassembler) is installed in .venv and hides this project's" \
                "remove it: $venv/bin/python -m pip uninstall capstone"
        fi
        if [[ -e $site/bcc/libbcc.py ]] || ! setup_wants_bcc "$@"; then return 0; fi
        # bcc was missing at the set-up, or its package was removed since.
        setup_load
        if [[ ! -w $site ]]; then
            setup_distribution
            say "warning: bcc is missing and kernel probes need it; run once as root: scripts/sysmeter run" \
                "(or install it: $bcc_hint)"
            return 0
        fi
    elif [[ ! -w $root || (-e $venv && ! -w $venv) ]]; then
        die "$venv is not set up (or out of date), and this user cannot write there" \
            "run once as its owner: sudo $root/scripts/sysmeter --help"
    fi

    setup_load
    old_umask=$(umask)
    umask 022 # what root sets up, other users read
    trap 'say "the set-up was interrupted; the next start completes it"; exit 130' INT
    setup_lock
    if setup_ready "$kind"; then # perhaps the other start did it
        if [[ ! -e $site/bcc/libbcc.py ]] && setup_wants_bcc "$@"; then setup_link_bcc; fi
    else
        setup_build "$kind"
    fi
    setup_unlock
    trap - INT
    umask "$old_umask"
}
