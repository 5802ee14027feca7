"""Tries what no agent may do and prints {name: outcome}: "done" or "refused: <why>".

Standard library only. Nothing that it tries changes the machine where it succeeds: files are opened for
writing and closed, mounts are undone, system calls get values that change nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import platform
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

TARGETS = json.loads(sys.argv[1])
LIBC = ctypes.CDLL(None, use_errno=True)
SYSCALLS = {
    "x86_64": {"keyctl": 250, "init_module": 175, "reboot": 169, "bpf": 321, "perf_event_open": 298},
    "aarch64": {"keyctl": 219, "init_module": 105, "reboot": 142, "bpf": 280, "perf_event_open": 241},
}[platform.machine()]
PROBES: dict[str, Callable[[], object]] = {}


class Refused(Exception):
    """The attempt came to nothing without an error of the kernel."""


def probe(function: Callable[[], object]) -> Callable[[], object]:
    PROBES[function.__name__] = function
    return function


def called(result: int) -> int:
    """The result of a C function, or its errno as OSError."""
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def read(path: str | Path) -> str:
    return Path(path).read_text("utf-8", "replace")


def open_for_writing(path: str | Path) -> None:
    os.close(os.open(path, os.O_WRONLY))


def read_target(name: str) -> None:
    if TARGETS["secret"] not in read(TARGETS[name]):
        raise Refused("another file")


# files of the lab and of the operator


@probe
def read_lab_home() -> None:
    read_target("lab_file")


@probe
def read_own_ledger() -> None:
    read_target("ledger")


@probe
def read_other_run() -> None:
    read_target("other_run")


@probe
def read_private_split() -> None:
    read_target("private_split")


@probe
def read_private_split_through_a_link() -> None:
    link = Path(TARGETS["workspace"], "output", "link")
    link.symlink_to(TARGETS["private_split"])
    try:
        if TARGETS["secret"] not in read(link):
            raise Refused("another file")
    finally:
        link.unlink()


@probe
def hard_link_private_split() -> None:
    link = Path(TARGETS["workspace"], "output", "hard")
    os.link(TARGETS["private_split"], link)
    link.unlink()


@probe
def read_env_file() -> None:
    read_target("env_file")


@probe
def read_operator_home() -> None:
    read_target("home_file")


@probe
def read_host_tmp() -> None:
    read_target("tmp_file")


@probe
def read_task_sources() -> None:
    if not [path for path in Path(TARGETS["package"], "benchmarks").iterdir() if path.suffix == ".py"]:
        raise Refused("empty")


@probe
def read_shadow() -> None:
    read("/etc/shadow")


@probe
def write_python_prefix() -> None:
    with tempfile.TemporaryFile(dir=TARGETS["prefix"]):
        pass


@probe
def write_package() -> None:
    open_for_writing(Path(TARGETS["package"], "__init__.py"))


@probe
def write_model() -> None:
    open_for_writing(TARGETS["model"])


@probe
def write_data() -> None:
    open_for_writing(TARGETS["data"])


@probe
def replace_data() -> None:
    path = Path(TARGETS["data"])
    path.rename(path.with_suffix(".moved"))
    path.with_suffix(".moved").rename(path)


@probe
def write_etc() -> None:
    open_for_writing("/etc/passwd")


@probe
def write_system() -> None:
    with tempfile.TemporaryFile(dir="/usr/bin"):
        pass


# processes of the host


def found_in_processes(name: str, mark: str) -> bool:
    """Whether another process has `mark` in its file /proc/<pid>/<name>."""
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            other = folder.name.isdigit() and folder.name != str(os.getpid())
            if other and mark in read(folder / name):
                return True
    return False


@probe
def see_harness() -> None:
    if not found_in_processes("cmdline", TARGETS["harness_mark"]):
        raise Refused("not among the visible processes")


@probe
def read_environment_of_others() -> None:
    if not found_in_processes("environ", TARGETS["environment_mark"]):
        raise Refused("in no readable environment")


@probe
def signal_harness() -> None:
    os.kill(TARGETS["harness_pid"], 0)


@probe
def trace_harness() -> None:
    pid = TARGETS["harness_pid"]
    called(LIBC.ptrace(0x4206, pid, None, None))  # PTRACE_SEIZE stops nothing
    LIBC.ptrace(17, pid, None, None)


@probe
def trace_supervisor() -> None:
    called(LIBC.ptrace(0x4206, os.getppid() if TARGETS["level"] == "none" else 1, None, None))


@probe
def read_memory_of_supervisor() -> None:
    with Path("/proc/1/mem").open("rb"):
        pass


@probe
def kill_supervisor() -> None:
    os.kill(1, signal.SIGKILL)
    time.sleep(0.1)
    os.kill(1, 0)
    raise Refused("it lives")


@probe
def attach_shared_memory() -> None:
    LIBC.shmat.restype = ctypes.c_long
    number = called(LIBC.shmget(TARGETS["shm_key"], 0, 0))
    called(LIBC.shmat(number, None, 0o10000))


@probe
def read_session_key() -> None:
    called(LIBC.syscall(SYSCALLS["keyctl"], 10, -3, b"user", TARGETS["key"].encode(), 0))


@probe
def read_user_key() -> None:
    called(LIBC.syscall(SYSCALLS["keyctl"], 10, -4, b"user", TARGETS["key"].encode(), 0))


# sockets


def connect_unix(address: str) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(2)
        connection.connect(address)


@probe
def connect_tmux() -> None:
    connect_unix(TARGETS["tmux_socket"])


@probe
def connect_docker() -> None:
    connect_unix(TARGETS["docker_socket"])


@probe
def connect_abstract_socket() -> None:
    connect_unix("\0" + TARGETS["abstract"])


@probe
def connect_host_loopback() -> None:
    with socket.create_connection(("127.0.0.1", TARGETS["loopback_port"]), timeout=2):
        pass


@probe
def reach_internet() -> None:
    """An address that is kept for documentation: a packet to it harms nobody, where it can leave at all."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as packet:
        packet.sendto(b"", ("192.0.2.1", 9))


@probe
def open_raw_socket() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP):
        pass


# the kernel


@probe
def write_core_pattern() -> None:
    open_for_writing("/proc/sys/kernel/core_pattern")


@probe
def write_sysctl() -> None:
    open_for_writing("/proc/sys/vm/drop_caches")


@probe
def write_sysrq() -> None:
    open_for_writing("/proc/sysrq-trigger")


@probe
def write_sysfs() -> None:
    open_for_writing("/sys/power/state")


@probe
def write_cgroups() -> None:
    open_for_writing(next(Path("/sys/fs/cgroup").rglob("cgroup.procs"), Path("/sys/fs/cgroup/cgroup.procs")))


def mount_here() -> None:
    with tempfile.TemporaryDirectory() as folder:
        called(LIBC.mount(b"none", folder.encode(), b"tmpfs", 0, None))
        called(LIBC.umount2(folder.encode(), 2))


@probe
def mount_something() -> None:
    mount_here()


@probe
def uncover_task_sources() -> None:
    called(LIBC.umount2(str(Path(TARGETS["package"], "benchmarks")).encode(), 2))


def as_root_of_a_namespace(script: str) -> None:
    """A user may make namespaces in which it is root; what is closed has to stay so there as well."""
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise Refused(result.stderr.strip())


@probe
def uncover_task_sources_in_a_namespace() -> None:
    cover = f"{TARGETS['package']}/benchmarks"
    as_root_of_a_namespace(f"umount '{cover}' && ls '{cover}/registry.py'")


@probe
def bind_task_sources_in_a_namespace() -> None:
    as_root_of_a_namespace(
        f"mount --bind '{TARGETS['package']}' /var/tmp && ls /var/tmp/benchmarks/registry.py"
    )


@probe
def write_data_in_a_namespace() -> None:
    folder = Path(TARGETS["data"]).parent
    as_root_of_a_namespace(f"mount -o remount,rw,bind '{folder}' && : >> '{TARGETS['data']}'")


@probe
def write_core_pattern_in_a_namespace() -> None:
    as_root_of_a_namespace(": > /proc/sys/kernel/core_pattern")


@probe
def make_device() -> None:
    path = Path(TARGETS["workspace"], "output", "device")
    os.mknod(path, stat.S_IFBLK | 0o600, os.makedev(7, 0))
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    finally:
        path.unlink()


@probe
def open_disk() -> None:
    disks = [path for path in Path("/dev").rglob("*") if path.is_block_device()]
    if not disks:
        raise Refused("no block device")
    for disk in disks:
        with contextlib.suppress(OSError):
            return os.close(os.open(disk, os.O_RDONLY | os.O_NONBLOCK))
    raise Refused("none can be opened")


@probe
def open_memory() -> None:
    for name in ("/dev/mem", "/dev/kmem", "/proc/kcore"):
        with contextlib.suppress(OSError):
            return os.close(os.open(name, os.O_RDONLY))
    raise Refused("none can be opened")


@probe
def open_kernel_log() -> None:
    os.close(os.open("/dev/kmsg", os.O_WRONLY))


@probe
def load_module() -> None:
    try:
        called(LIBC.syscall(SYSCALLS["init_module"], b"no module", 9, b""))
    except OSError as error:
        if error.errno != errno.ENOEXEC:  # was allowed, and found to be no module
            raise


@probe
def reboot() -> None:
    try:
        called(LIBC.syscall(SYSCALLS["reboot"], 0, 0, 0, None))
    except OSError as error:
        if error.errno != errno.EINVAL:  # was allowed, and the magic numbers found wrong
            raise


@probe
def load_bpf() -> None:
    called(LIBC.syscall(SYSCALLS["bpf"], 13, ctypes.create_string_buffer(64), 64))  # by id 0


@probe
def set_clock() -> None:
    state = ctypes.create_string_buffer(512)
    called(LIBC.adjtimex(state))
    ctypes.c_uint.from_buffer(state).value = 0x0010  # ADJ_STATUS, to what it is
    called(LIBC.adjtimex(state))


@probe
def set_hostname() -> None:
    name = socket.gethostname().encode()
    called(LIBC.sethostname(name, len(name)))


@probe
def become_root() -> None:
    os.setresuid(0, 0, 0)


@probe
def become_another_user() -> None:
    if os.fork() == 0:
        with contextlib.suppress(OSError):
            os.setresuid(12345, 12345, 12345)
            os._exit(0)
        os._exit(1)
    if os.waitstatus_to_exitcode(os.wait()[1]):
        raise Refused("EPERM")


@probe
def gain_from_setuid_program() -> None:
    """Every setuid program of the system is only as strong as the process that may execute it as such."""
    status = dict(line.split(":\t", 1) for line in read("/proc/self/status").splitlines() if ":\t" in line)
    if status["NoNewPrivs"].strip() == "1" and os.geteuid() != 0:
        raise Refused("no_new_privs is set")


@probe
def hold_capabilities() -> None:
    status = dict(line.split(":\t", 1) for line in read("/proc/self/status").splitlines() if ":\t" in line)
    if not any(int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")):
        raise Refused("all sets are empty")


@probe
def change_root() -> None:
    if os.fork() == 0:
        with contextlib.suppress(OSError):
            os.chroot("/tmp")
            os._exit(0)
        os._exit(1)
    if os.waitstatus_to_exitcode(os.wait()[1]):
        raise Refused("EPERM")


@probe
def raise_priority() -> None:
    os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) - 1)


@probe
def push_into_terminal() -> None:
    with Path("/dev/tty").open("rb"):
        pass


def outcome(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except (OSError, Refused, subprocess.SubprocessError) as error:
        return f"refused: {errno.errorcode.get(getattr(error, 'errno', None), error)}"
    return "done"


def listing(path: str) -> list[str]:
    return sorted(entry.name for entry in Path(path).iterdir())


if __name__ == "__main__":
    folders = ("/", "/dev", "/run", "/tmp", "/var", "/var/tmp", "/sys", *TARGETS["list"])
    seen = {path: listing(path) for path in folders if Path(path).is_dir()}
    print(
        json.dumps({"outcomes": {name: outcome(attempt) for name, attempt in PROBES.items()}, "seen": seen})
    )
