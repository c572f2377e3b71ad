# shellcheck shell=bash
# What the set-up takes from the host: the distribution's packages, bcc among them, and an interpreter.
# Sourced by setup.sh when there is something to do.

# Sets `family` (debian, fedora, …, or other), `os_name` and `bcc_hint`: how bcc is installed here.
setup_distribution() {
    local line name value id='' like='' word file=${SYSMETER_OS_RELEASE:-/etc/os-release}
    os_name='this distribution' family=other
    if [[ -r $file ]]; then
        while IFS= read -r line || [[ -n $line ]]; do
            name=${line%%=*} value=${line#*=}
            value=${value#[\"\']} value=${value%[\"\']}
            case $name in
            ID) id=$value ;;
            ID_LIKE) like=$value ;;
            PRETTY_NAME) os_name=$value ;;
            esac
        done <"$file"
    fi
    for word in $id $like; do
        case $word in
        debian | ubuntu) family=debian ;;
        fedora | rhel | centos) family=fedora ;;
        arch) family=arch ;;
        suse | opensuse*) family=suse ;;
        alpine) family=alpine ;;
        *) continue ;;
        esac
        break
    done
    case $family in
    debian) bcc_hint='apt-get install python3-bpfcc' ;;
    fedora) bcc_hint='dnf install python3-bcc' ;;
    arch) bcc_hint='pacman -S python-bcc' ;;
    suse) bcc_hint='zypper install python3-bcc' ;;
    alpine) bcc_hint='apk add py3-bcc' ;;
    *) bcc_hint="your package manager's Python 3 package of bcc (python3-bpfcc, python3-bcc, python-bcc or py3-bcc)" ;;
    esac
}

# Sets `bcc`: the folder of the distribution's bcc package, or empty. PyPI's "bcc" has no libbcc.py.
setup_find_bcc() {
    local folder folders
    if [[ -n ${SYSMETER_BCC_DIRS-} ]]; then
        IFS=: read -r -a folders <<<"$SYSMETER_BCC_DIRS"
    else
        folders=(/usr/lib/python3/dist-packages /usr/lib/python3*/site-packages /usr/lib64/python3*/site-packages)
    fi
    bcc=''
    for folder in "${folders[@]}"; do
        if [[ -e $folder/bcc/libbcc.py ]]; then
            bcc=$folder/bcc
            return 0
        fi
    done
}

apt_updated=''

# Installs packages of Debian or Ubuntu; root only. Its output goes to the log. The lock is not handed down:
# a service that a package starts would hold it for ever.
setup_apt() {
    local options=(-y -q --no-install-recommends -o DPkg::Lock::Timeout=120 -o Dpkg::Options::=--force-confold)
    if [[ -z $apt_updated ]]; then
        apt_updated=yes
        apt-get -q update </dev/null >>"$log" 2>&1 9>&- || true # one dead mirror need not matter
    fi
    DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 \
        apt-get install "${options[@]}" "$@" </dev/null >>"$log" 2>&1 9>&-
}

# Sets `bcc`; installs the package first where that is possible. Never fatal: only some commands need it.
setup_provide_bcc() {
    setup_find_bcc
    if [[ -n $bcc ]]; then return 0; fi
    setup_distribution
    if [[ $family != debian ]]; then
        say "warning: bcc is missing and kernel probes need it; on $os_name, install it with: $bcc_hint"
    elif ((EUID != 0)); then
        say "warning: bcc is missing and kernel probes need it; install it with: sudo $bcc_hint"
    else
        say 'installing python3-bpfcc (bcc) with apt-get'
        if setup_apt python3-bpfcc; then setup_find_bcc; fi
        if [[ -z $bcc ]]; then
            say "warning: apt-get could not install python3-bpfcc (see $log), so kernel probes are unavailable;" \
                "check the network, then run: $bcc_hint"
        fi
    fi
}

setup_link_bcc() {
    setup_provide_bcc
    if [[ -z $bcc ]]; then return 0; fi
    if [[ -e $site/bcc && ! -L $site/bcc ]]; then
        say "warning: another project's bcc is installed in .venv, so kernel probes are unavailable;" \
            "remove it: $venv/bin/python -m pip uninstall bcc"
        return 0
    fi
    ln -sfn -- "$bcc" "$site/bcc"
    if ! (cd / && "$venv/bin/python" -I -B -W ignore -c 'import bcc') >>"$log" 2>&1; then
        say "warning: $bcc cannot be imported (see $log), so kernel probes are unavailable"
    fi
}

# ── Python ──────────────────────────────────────────────────────────────────────────────────────────────────

# Sets `python` (real path) and `python_version` of a command; fails with `python_problem` set.
setup_probe_python() {
    local answer abi minor program='
import os, sys
base = getattr(sys, "_base_executable", None) or sys.executable
print("%s %d.%d.%d %s|%s" % ((sys.implementation.name,) + tuple(sys.version_info[:3])
      + (getattr(sys, "abiflags", ""), os.path.realpath(base))))'
    if ! answer=$("$1" -I -c "$program" 2>/dev/null </dev/null); then
        answer=$("$1" --version 2>&1 </dev/null) || answer='does not start'
        python_problem="$1 ($(tail -n 1 <<<"$answer"))"
        return 1
    fi
    python=${answer#*|}
    read -r python_name python_version abi <<<"${answer%%|*}"
    python_problem="$1 ($python_name $python_version${abi:+, $abi})"
    minor=${python_version#3.} minor=${minor%%.*}
    [[ $python_name == cpython && $python_version == 3.* && $abi != *t* ]] &&
        ((minor >= setup_min_minor && minor <= setup_max_minor))
}

# True if users other than root can reach a path: every folder above it lets them pass.
setup_is_public() {
    local path=$1 folders=() mode
    while [[ $path == */* && -n $path ]]; do
        folders+=("$path")
        path=${path%/*}
    done
    while read -r mode; do
        (((8#$mode & 1) == 1)) || return 1
    done < <(stat -L -c %a -- "${folders[@]}" 2>/dev/null)
}

# Sets `python` and `python_version`: SYSMETER_PYTHON, or the first suitable one. What root sets up must serve
# other users too, so root passes over an interpreter in a private folder if there is another.
setup_choose_python() {
    local range="Python 3.$setup_min_minor to 3.$setup_max_minor" candidate found=() private='' private_version='' remedy
    if [[ -n ${SYSMETER_PYTHON-} ]]; then
        setup_probe_python "$SYSMETER_PYTHON" ||
            die "SYSMETER_PYTHON does not name a usable interpreter: $python_problem" "$range (CPython) is needed"
        return 0
    fi
    for candidate in python3 /usr/bin/python3 python3.13 python3.12 python3.11 python3.14; do
        candidate=$(type -P "$candidate") || continue
        if ! setup_probe_python "$candidate"; then
            found+=("$python_problem")
        elif ((EUID != 0)) || setup_is_public "$python" || ! setup_is_public "$root"; then
            if [[ -n $private ]]; then
                say "using $python: other users cannot run $private (SYSMETER_PYTHON overrides)"
            fi
            return 0
        elif [[ -z $private ]]; then
            private=$python private_version=$python_version
        fi
    done
    if [[ -n $private ]]; then
        python=$private python_version=$private_version
        say "warning: only root can run $python, so only root can use this set-up (SYSMETER_PYTHON overrides)"
        return 0
    fi
    setup_distribution
    remedy='install one, or name one with SYSMETER_PYTHON=/path/to/python3'
    if [[ $family == debian ]]; then remedy="for example: apt-get install python3.11 python3.11-venv; or $remedy"; fi
    local list='none found'
    if ((${#found[@]})); then
        printf -v list '%s; ' "${found[@]}"
        list="found ${list%; }"
    fi
    die "$range (CPython) is needed; $list" "$remedy"
}

# Debian and Ubuntu keep ensurepip in a package of its own.
setup_provide_ensurepip() {
    local package
    if "$python" -I -c 'import ensurepip, venv' 2>/dev/null; then return 0; fi
    setup_distribution
    package="python${python_version%.*}-venv"
    if [[ $family == debian && $python == /usr/bin/* ]]; then
        if ((EUID == 0)); then
            say "installing $package with apt-get"
            if setup_apt "$package" && "$python" -I -c 'import ensurepip, venv' 2>/dev/null; then return 0; fi
        fi
        die "$python has no ensurepip, which makes virtual environments" "run: sudo apt-get install $package"
    fi
    die "$python has no ensurepip, which makes virtual environments" "install it, or name another with SYSMETER_PYTHON"
}
