package consensus

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// stoppedLimit is short for a disk and long for a machine that is busy with other tests.
const stoppedLimit = 5 * time.Second

// toldStore writes when it is told to.
type toldStore struct {
	raft.LogStore
	begun io.Writer
	told  io.Reader
}

func (s toldStore) StoreLogs(logs []*raft.Log) error {
	fmt.Fprintln(s.begun, "writing")
	_, err := bufio.NewReader(s.told).ReadString('\n')
	return err
}

// TestAWriteUnderWayWhileTheProcessWasStoppedIsNoHungDisk stops a process in the middle of a write for longer than a write
// may take. After it, all of its timers are due.
func TestAWriteUnderWayWhileTheProcessWasStoppedIsNoHungDisk(t *testing.T) {
	if os.Getenv("CONSENSUS_TEST_STOPPED") != "" {
		store := &guardedStore{logs: toldStore{begun: os.Stdout, told: os.Stdin}, limit: stoppedLimit, hung: func(string) { os.Exit(ExitFault) }, failed: func(string, error) {}}
		if err := store.StoreLogs(nil); err != nil {
			os.Exit(2)
		}
		os.Exit(0)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, stopped := range map[string]bool{"stopped": true, "running": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			child := exec.Command(self, "-test.run=^"+"TestAWriteUnderWayWhileTheProcessWasStoppedIsNoHungDisk$")
			child.Env = append(os.Environ(), "CONSENSUS_TEST_STOPPED=1")
			tell, err := child.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			said, err := child.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := child.Start(); err != nil {
				t.Fatal(err)
			}
			if _, err := bufio.NewReader(said).ReadString('\n'); err != nil {
				t.Fatal(err)
			}
			if stopped {
				_ = child.Process.Signal(syscall.SIGSTOP)
				<-time.After(stoppedLimit + time.Second)
				_ = child.Process.Signal(syscall.SIGCONT)
				<-time.After(stoppedLimit / 10) // for what was due meanwhile
			} else {
				<-time.After(stoppedLimit + time.Second) // the disk's fault
			}
			_, _ = io.WriteString(tell, "now\n") // one that has ended hears nothing
			_ = child.Wait()
			if got, want := child.ProcessState.ExitCode(), map[bool]int{true: 0, false: ExitFault}[stopped]; got != want {
				t.Errorf("it ended with %d, want %d", got, want)
			}
		})
	}
}
