package vz

import (
	"bufio"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// leaseAgain is how old the answer of leases may be.
const leaseAgain = 5 * time.Second

// leases looks an address up in what the Mac's NAT noted.
type leases struct {
	path, mac string

	mu    sync.Mutex
	last  string
	asked time.Time
}

func (l *leases) ip() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.asked.IsZero() && time.Since(l.asked) < leaseAgain {
		return l.last
	}
	l.asked = time.Now()
	f, err := os.Open(l.path)
	if err != nil {
		return l.last
	}
	defer f.Close()
	l.last = leasedIP(f, l.mac)
	return l.last
}

// leasedIP is the address last given to the hardware address; empty without one. The file is a list of blocks in braces,
// each with ip_address=A and hw_address=1,AA:B:…, whose numbers have no leading zeros.
func leasedIP(r io.Reader, mac string) string {
	found, newest := "", int64(-1)
	var ip, hw string
	var until int64
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		key, value, _ := strings.Cut(line, "=")
		switch {
		case line == "{":
			ip, hw, until = "", "", 0
		case key == "ip_address":
			ip = value
		case key == "hw_address":
			_, hw, _ = strings.Cut(value, ",")
		case key == "lease":
			until, _ = strconv.ParseInt(strings.TrimPrefix(value, "0x"), 16, 64)
		case line == "}" && until > newest && net.ParseIP(ip) != nil && sameMAC(hw, mac):
			found, newest = ip, until
		}
	}
	return found
}

func sameMAC(a, b string) bool {
	x, y := strings.Split(a, ":"), strings.Split(b, ":")
	if len(x) != 6 || len(y) != 6 {
		return false
	}
	for i := range x {
		m, err := strconv.ParseUint(x[i], 16, 8)
		n, err2 := strconv.ParseUint(y[i], 16, 8)
		if err != nil || err2 != nil || m != n {
			return false
		}
	}
	return true
}
