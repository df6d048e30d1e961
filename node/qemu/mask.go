//go:build linux

package qemu

import (
	"fmt"
	"os/exec"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A restored machine has its template's file as its memory, mapped so that what it writes is its own. QEMU gives
// ballooned and reported pages back in two steps: it makes a hole in the file, as if the file were the machine's
// alone, and then drops the pages. The hole would be in the memory of every other machine of that template. So the
// first step is answered for the kernel as done, and the second, which drops only this machine's own pages, stays.

// punchHole is the mode with which QEMU makes a hole: FALLOC_FL_KEEP_SIZE and FALLOC_FL_PUNCH_HOLE.
const punchHole = 0x01 | 0x02

// maskHoles is a filter that lets every call through but a hole in a file, which it answers with success undone.
func maskHoles() []unix.SockFilter {
	const (
		load  = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equal = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		give  = unix.BPF_RET | unix.BPF_K

		offsetCall, offsetArch, offsetMode = 0, 4, 16 + 8 // in struct seccomp_data; the mode is the second argument
	)
	return []unix.SockFilter{
		{Code: load, K: offsetArch},
		{Code: equal, K: unix.AUDIT_ARCH_X86_64, Jf: 5},
		{Code: load, K: offsetCall},
		{Code: equal, K: unix.SYS_FALLOCATE, Jf: 3},
		{Code: load, K: offsetMode},
		{Code: equal, K: punchHole, Jf: 1},
		{Code: give, K: unix.SECCOMP_RET_ERRNO | 0},
		{Code: give, K: unix.SECCOMP_RET_ALLOW},
	}
}

// startMasked starts the command from a thread that has the filter, which a new process inherits, and gives the
// thread up.
func startMasked(cmd *exec.Cmd) error {
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		started <- func() error {
			if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
				return fmt.Errorf("filtering its system calls: %w", err)
			}
			filter := maskHoles()
			program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
			if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&program))); errno != 0 {
				return fmt.Errorf("filtering its system calls: %w", errno)
			}
			return cmd.Start()
		}()
	}()
	return <-started
}
