package vz

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// killWithin is how long the kernel may take to end a process.
const killWithin = 30 * time.Second

// A lock on a file of the VM's directory is held as long as its helper lives, whose process id is in there. The kernel lets
// go of the lock with the process, so it tells for certain whether a helper lives, which an id that may have been given to
// another process meanwhile does not.
//
// The daemon takes the lock before it starts the helper, which inherits it. So there is no moment in which a helper is on
// its way and nobody can tell, whenever the daemon dies, and never two helpers. The file stays: were it made anew, there
// would be two to lock.

var errLocked = errors.New("a helper of this VM runs already")

// hold takes the lock for the life of the file that it gives.
func hold(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errLocked
		}
		return nil, fmt.Errorf("locking %s: %w", lockFile, err)
	}
	return f, nil
}

// holdForHelper takes the lock for a helper that is still to be started. The id of an earlier one goes: its number may be
// another process's by now, and whoever finds the lock held ends the process that the file names.
func holdForHelper(dir string) (*os.File, error) {
	f, err := hold(dir)
	if err != nil {
		return nil, err
	}
	if err := f.Truncate(0); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// helperLives says whether a helper holds the lock.
func helperLives(dir string) (bool, error) {
	if _, err := os.Stat(filepath.Join(dir, lockFile)); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	f, err := hold(dir)
	if errors.Is(err, errLocked) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	return false, f.Close()
}

// helperPID is what the helper that holds the lock wrote; 0 while it has not.
func helperPID(dir string) int {
	raw, err := os.ReadFile(filepath.Join(dir, lockFile))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil || pid <= 1 {
		return 0
	}
	return pid
}

// endHelper kills the helper, if one lives, and waits until it is gone.
func endHelper(dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), killWithin)
	defer cancel()
	for {
		lives, err := helperLives(dir)
		if err != nil || !lives {
			return err
		}
		if pid := helperPID(dir); pid != 0 {
			if err := signal(pid, syscall.SIGKILL); err != nil {
				return fmt.Errorf("killing the VM's helper, process %d: %w", pid, err)
			}
			reap(pid, syscall.WNOHANG)
		}
		if !pause(ctx, 10*time.Millisecond) {
			return fmt.Errorf("the VM's helper, process %d, does not end", helperPID(dir))
		}
	}
}

// signal sends one process a signal. It is no error that it has ended. An id that would mean many processes, or init, is
// refused here, once for all callers.
func signal(pid int, what syscall.Signal) error {
	if pid <= 1 {
		return fmt.Errorf("process id %d is not a helper's", pid)
	}
	if err := syscall.Kill(pid, what); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return nil
}

// reap collects a helper that has ended, if it is our child; an earlier daemon's is not.
func reap(pid, options int) {
	if pid > 1 {
		_, _ = syscall.Wait4(pid, nil, options, nil)
	}
}

// pause waits; it says no once ctx has ended.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
