package consensus

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Exit codes a replica ends with when it must not go on.
const (
	ExitFault  = 70 // something hangs or broke; starting again is right
	ExitConfig = 78 // an operator has to decide; starting again changes nothing
)

// ExitError says that this replica must not run on its data directory and what to do about it.
type ExitError struct {
	Code    int
	Message string
}

func (e *ExitError) Error() string { return e.Message }

func exitCode(err error) int {
	if e := (*ExitError)(nil); errors.As(err, &e) {
		return e.Code
	}
	return ExitFault
}

func refuse(format string, args ...any) *ExitError {
	return &ExitError{Code: ExitConfig, Message: fmt.Sprintf(format, args...)}
}

// identity says whose data directory this is. It lives outside the raft directory so that losing one shows in
// the other: a voter that forgot its vote must never come back as if nothing had happened.
type identity struct {
	ClusterID   string `json:"cluster_id"`
	Name        string `json:"name"`
	Initialised bool   `json:"initialised"`

	path string // empty in memory
}

func readIdentity(path string) (*identity, error) {
	id := &identity{path: path}
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return id, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading identity: %w", err)
	}
	if err := json.Unmarshal(raw, id); err != nil || id.ClusterID == "" || id.Name == "" {
		return nil, refuse("%s is damaged: put it back from a backup, or remove this replica from the cluster, empty the data directory and join again", path)
	}
	return id, nil
}

// check refuses a directory that belongs to another replica or has lost its raft state.
func (id *identity) check(name string, hasState, create bool) error {
	switch {
	case id.Name != "" && id.Name != name:
		return refuse("this data directory belongs to replica %q: start with --name %s, or give %q a data directory of its own", id.Name, id.Name, name)
	case id.Initialised && !hasState:
		return refuse("the raft store of replica %q is missing or empty though it is a member of cluster %s: put it back, or remove this replica from the cluster, empty the data directory and join again", id.Name, id.ClusterID)
	case !hasState && !create:
		return refuse("the data directory holds no replica: start a new cluster with --bootstrap, become a member of one with --join, or name the right directory with --data")
	}
	return nil
}

// mark records that the directory holds a member of the cluster. It returns only once that is on disk.
func (id *identity) mark(name, clusterID string) error {
	next := identity{ClusterID: clusterID, Name: name, Initialised: true, path: id.path}
	if *id == next {
		return nil
	}
	if id.path != "" {
		raw, err := json.MarshalIndent(next, "", "  ")
		if err != nil {
			return fmt.Errorf("writing identity: %w", err)
		}
		if err := writeSynced(id.path, append(raw, '\n')); err != nil {
			return fmt.Errorf("writing identity: %w", err)
		}
	}
	*id = next
	return nil
}

// writeSynced replaces a file so that after a crash either the old or the new content is there, whole.
func writeSynced(path string, data []byte) error {
	temporary := path + ".new"
	f, err := os.OpenFile(temporary, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(temporary, path)
	}
	if err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
