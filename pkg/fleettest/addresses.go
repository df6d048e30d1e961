package fleettest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
)

// ClusterAddrs gives the cluster addresses of a fleet's replicas: free ones the first time, and those of then ever
// after, for they are the members that the replicas have on disk.
func ClusterAddrs(dir string, replicas int) ([]string, error) {
	path := filepath.Join(dir, "cluster-addresses.json")
	raw, err := os.ReadFile(path)
	if err == nil {
		var addrs []string
		if err := json.Unmarshal(raw, &addrs); err != nil {
			return nil, fmt.Errorf("reading %s: %w", path, err)
		}
		if len(addrs) != replicas {
			return nil, fmt.Errorf("%s holds a fleet of %d replicas: start it with --replicas %d, or name another directory", dir, len(addrs), len(addrs))
		}
		return addrs, nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("reading the cluster addresses: %w", err)
	}
	var addrs []string
	for range replicas {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("looking for a free port: %w", err)
		}
		defer l.Close() // not before all are found: none twice
		addrs = append(addrs, l.Addr().String())
	}
	if raw, err = json.Marshal(addrs); err == nil {
		err = errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(path, append(raw, '\n'), 0o600))
	}
	if err != nil {
		return nil, fmt.Errorf("keeping the cluster addresses: %w", err)
	}
	return addrs, nil
}
