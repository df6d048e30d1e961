package api

import (
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Limits of a claim. What is not secret waits in the log until the guest has it, so it is kept small.
const (
	MaxClaimBytes   = 32 << 10 // hostname, env and files together
	MaxSecretsBytes = 64 << 10 // the values of secrets together
	maxClaimEnv     = 64
	maxClaimFiles   = 16
	maxSecrets      = 32
	maxClaimName    = 128
	maxHostname     = 63
)

// Claim is what a launch gives to its guest through the guest agent: a warm VM gets it when it is handed over, a new
// one when its agent first answers.
type Claim struct {
	Hostname string            `json:"hostname,omitempty"`
	Env      map[string]string `json:"env,omitempty"`
	Files    []ClaimFile       `json:"files,omitempty"`
	// Secrets are never stored: not in rows, the log, events, snapshots or the host's records. By name.
	Secrets map[string]string `json:"secrets,omitempty"`
}

// ClaimFile is a text file that the agent writes. Mode is octal, 0644 when left out.
type ClaimFile struct {
	Path    string `json:"path"`
	Content string `json:"content"`
	Mode    string `json:"mode,omitempty"`
}

// GuestClaim is what a node gives to a guest. RotateIdentity makes the guest forget what it shares with others of its
// image: machine id and SSH host keys.
type GuestClaim struct {
	Claim
	RotateIdentity bool `json:"rotate_identity,omitempty"`
}

// Permissions are the file's mode bits.
func (f ClaimFile) Permissions() uint32 {
	if bits, err := strconv.ParseUint(f.Mode, 8, 32); err == nil && f.Mode != "" {
		return uint32(bits)
	}
	return 0o644
}

// SecretNames are the names of the secrets, sorted.
func (c *Claim) SecretNames() []string {
	if c == nil {
		return nil
	}
	return slices.Sorted(maps.Keys(c.Secrets))
}

// WithoutSecrets is a copy in which secrets have names and no values, for whatever outlasts the request.
func (c *Claim) WithoutSecrets() *Claim {
	if c == nil || len(c.Secrets) == 0 {
		return c
	}
	out := *c
	out.Secrets = make(map[string]string, len(c.Secrets))
	for name := range c.Secrets {
		out.Secrets[name] = ""
	}
	return &out
}

// Check refuses what no guest could take. It never repeats a value.
func (c *Claim) Check() error {
	if c == nil {
		return nil
	}
	if err := checkHostname(c.Hostname); err != nil {
		return err
	}
	switch {
	case len(c.Env) > maxClaimEnv:
		return Invalid("claim.env", "claim.env may hold %d entries at most", maxClaimEnv)
	case len(c.Files) > maxClaimFiles:
		return Invalid("claim.files", "claim.files may hold %d files at most", maxClaimFiles)
	case len(c.Secrets) > maxSecrets:
		return Invalid("claim.secrets", "claim.secrets may hold %d entries at most", maxSecrets)
	}
	size, secret := len(c.Hostname), 0
	for _, k := range slices.Sorted(maps.Keys(c.Env)) {
		if !isVariable(k, "") || strings.ContainsRune(c.Env[k], 0) {
			return Invalid("claim.env", "names of claim.env must be 1-%d letters, digits and _, not beginning with a digit, and values must not hold the byte 0", maxClaimName)
		}
		size += len(k) + len(c.Env[k])
	}
	for _, f := range c.Files {
		if err := f.check(); err != nil {
			return err
		}
		size += len(f.Path) + len(f.Content)
	}
	for _, k := range slices.Sorted(maps.Keys(c.Secrets)) {
		if !isVariable(k, ".-") {
			return Invalid("claim.secrets", "names of claim.secrets must be 1-%d letters, digits, _, . and -, beginning with a letter or _", maxClaimName)
		}
		secret += len(c.Secrets[k])
	}
	switch {
	case size > MaxClaimBytes:
		return Invalid("claim", "hostname, env and files of a claim may have %d bytes together; have the guest fetch what is larger", MaxClaimBytes)
	case secret > MaxSecretsBytes:
		return Invalid("claim.secrets", "claim.secrets may have %d bytes together; have the guest fetch what is larger", MaxSecretsBytes)
	}
	return nil
}

func checkHostname(s string) error {
	bad := len(s) > maxHostname || strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '.'
	})
	if s != "" && (bad || strings.ContainsAny(s[:1]+s[len(s)-1:], "-.") || strings.Contains(s, "..")) {
		return Invalid("claim.hostname", "claim.hostname must be 1-%d letters, digits, - and ., and neither begin nor end with - or .", maxHostname)
	}
	return nil
}

// isVariable says whether s can name a variable, with more characters allowed after the first.
func isVariable(s, more string) bool {
	for i, r := range s {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r == '_'
		if !letter && (i == 0 || (r < '0' || r > '9') && !strings.ContainsRune(more, r)) {
			return false
		}
	}
	return s != "" && len(s) <= maxClaimName
}

func (f ClaimFile) check() error {
	clean := len(f.Path) <= maxPath && path.IsAbs(f.Path) && path.Clean(f.Path) == f.Path && f.Path != "/" && !strings.ContainsFunc(f.Path, func(r rune) bool { return r < 0x20 })
	if !clean {
		return Invalid("claim.files", "path of claim.files must be absolute, without . or .. in it, and of %d bytes at most", maxPath)
	}
	if bits, err := strconv.ParseUint(f.Mode, 8, 32); f.Mode != "" && (err != nil || bits > 0o777) {
		return Invalid("claim.files", "mode of claim.files must be octal, from 0 to 0777")
	}
	return nil
}
