package certs

import (
	"crypto/x509"
	"fmt"
	"net/url"
	"regexp"
	"strings"
)

// Role is what the holder of a certificate may speak as.
type Role string

// The roles.
const (
	Replica Role = "replica" // a member of the control plane, to the others, to nodes and to clients
	Node    Role = "node"    // a host's daemon
	API     Role = "api"     // a caller of the fleet's API, or a proxy in front of it
)

// Roles are all of them.
func Roles() []Role { return []Role{Replica, Node, API} }

// Identity is who a certificate says its holder is. The zero value is nobody of this fleet.
type Identity struct {
	Role Role
	Name string
}

// String is the form that logs and messages show.
func (i Identity) String() string {
	if i.Role == "" {
		return "a certificate without a role"
	}
	return string(i.Role) + "/" + i.Name
}

// Parse reads what String wrote.
func Parse(text string) (Identity, bool) {
	role, name, _ := strings.Cut(text, "/")
	i := Identity{Role(role), name}
	return i, i.Check() == nil
}

// longestName is that of a host in DNS.
const longestName = 63

var namePattern = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$`)

// Check refuses a role that there is not and a name that a URI could not carry.
func (i Identity) Check() error {
	switch {
	case i.Role != Replica && i.Role != Node && i.Role != API:
		return fmt.Errorf("the role %q must be replica, node or api", i.Role)
	case len(i.Name) > longestName || !namePattern.MatchString(i.Name):
		return fmt.Errorf("the name %q must have 1 to %d letters, digits, . and -", i.Name, longestName)
	}
	return nil
}

const scheme = "fluxvm"

func (i Identity) uri() *url.URL {
	return &url.URL{Scheme: scheme, Host: string(i.Role), Path: "/" + i.Name}
}

// Of reads the identity that a certificate carries. One with none, or with more than one, is nobody.
func Of(cert *x509.Certificate) (found Identity) {
	for _, u := range cert.URIs {
		if u.Scheme != scheme {
			continue
		}
		i := Identity{Role(u.Host), strings.TrimPrefix(u.Path, "/")}
		if found != (Identity{}) || i.Check() != nil || i.uri().String() != u.String() {
			return Identity{}
		}
		found = i
	}
	return found
}
