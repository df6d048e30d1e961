package guest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Where a claim leaves things in the guest. All but files lie below runDir, which a restart of the guest empties.
const (
	envFile     = runDir + "/env"     // for shells: export NAME='value'
	environFile = runDir + "/environ" // the same as NAME=value, each ended by a zero byte
	secretsDir  = runDir + "/secrets" // a file a secret
)

// Claim is what a guest gets when somebody takes it over.
type Claim struct {
	Hostname string            `json:"hostname,omitempty"`
	Env      map[string]string `json:"env,omitempty"`
	Files    []File            `json:"files,omitempty"`
	Secrets  map[string]string `json:"secrets,omitempty"`
}

// File is a file to write. Mode holds the permission bits.
type File struct {
	Path    string `json:"path"`
	Content string `json:"content"`
	Mode    uint32 `json:"mode"`
}

// Owner is what the agent needs of its guest to carry out a claim or a renewal.
type Owner interface {
	// Renew makes the guest another one, or the same one at another time.
	Renew(Renewal) error
	// SetHostname names the running guest.
	SetHostname(name string) error
	// InMemory makes the directory, which is there, one that never reaches a disk.
	InMemory(dir string) error
}

// Claim gives the guest what its taker wants it to have. It may be repeated: the guest then has the newer one.
func (c *Client) Claim(ctx context.Context, claim Claim) error {
	if err := c.call(ctx, opClaim, claim, nil); err != nil {
		return fmt.Errorf("giving the claim to the guest: %w", err)
	}
	return nil
}

// claim carries one out. No message holds a value: what it says may be written down.
func (s *Server) claim(c Claim) error {
	if s.Owner == nil {
		return errors.New("this agent takes no claims")
	}
	if c.Hostname != "" {
		if err := s.Owner.SetHostname(c.Hostname); err != nil {
			return fmt.Errorf("setting the hostname: %w", err)
		}
		if hostsName != "" {
			if err := s.write(hostsName, c.Hostname+"\n", 0o644); err != nil {
				return err
			}
		}
	}
	if err := s.writeEnv(c.Env); err != nil {
		return err
	}
	if err := s.writeSecrets(c.Secrets); err != nil {
		return err
	}
	for _, f := range c.Files {
		if err := s.write(f.Path, f.Content, fs.FileMode(f.Mode)&fs.ModePerm); err != nil {
			return err
		}
	}
	return nil
}

func (s *Server) writeEnv(env map[string]string) error {
	if len(env) == 0 {
		return nil
	}
	var shell, plain strings.Builder
	for _, k := range slices.Sorted(maps.Keys(env)) {
		fmt.Fprintf(&shell, "export %s='%s'\n", k, strings.ReplaceAll(env[k], "'", `'\''`))
		plain.WriteString(k + "=" + env[k] + "\x00")
	}
	err := errors.Join(s.write(envFile, shell.String(), 0o644), s.write(environFile, plain.String(), 0o644))
	if profileFile != "" {
		err = errors.Join(err, s.write(profileFile, "[ ! -r "+envFile+" ] || . "+envFile+"\n", 0o644))
	}
	return err
}

// environ is the environment that a claim gave the guest: commands run in it.
func (s *Server) environ() map[string]string {
	raw, err := os.ReadFile(s.at(environFile))
	if err != nil {
		return nil // there was no claim
	}
	out := map[string]string{}
	for entry := range strings.SplitSeq(string(raw), "\x00") {
		if k, v, ok := strings.Cut(entry, "="); ok {
			out[k] = v
		}
	}
	return out
}

func (s *Server) writeSecrets(secrets map[string]string) error {
	if len(secrets) == 0 {
		return nil
	}
	dir := s.at(secretsDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("making the directory of secrets: %w", err)
	}
	if err := s.Owner.InMemory(dir); err != nil {
		return fmt.Errorf("keeping secrets off the disk: %w", err)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return fmt.Errorf("closing the directory of secrets: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(secrets)) {
		if name != filepath.Base(name) || strings.HasPrefix(name, ".") {
			return errors.New("a secret's name is not that of a file")
		}
		if err := s.write(secretsDir+"/"+name, secrets[name], 0o600); err != nil {
			return err
		}
	}
	return nil
}

func (s *Server) at(path string) string { return filepath.Join("/", s.Root, path) }

// write replaces a file as a whole: nobody reads half of it.
func (s *Server) write(path, content string, mode fs.FileMode) error {
	to := s.at(path)
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return fmt.Errorf("making room for %s: %w", path, err)
	}
	f, err := os.CreateTemp(filepath.Dir(to), ".fluxvm-*") // 0600 until it is whole
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	_, err = f.WriteString(content)
	if err = errors.Join(err, f.Chmod(mode), f.Close()); err == nil {
		err = os.Rename(f.Name(), to)
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, errors.Join(err, os.Remove(f.Name())))
	}
	return nil
}
