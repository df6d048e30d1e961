package node

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
	"sync"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// fence is the newest leadership that has given this node an order: an order from an older one is refused, so
// that a deposed leader can do no harm.
type fence struct {
	Epoch uint64 `json:"epoch"`
	Term  uint64 `json:"term"`
}

func (f fence) older(than fence) bool {
	return f.Epoch < than.Epoch || f.Epoch == than.Epoch && f.Term < than.Term
}

// token is a fencing token, EPOCH.TERM.OP. The zero token is that of an order without one.
type token struct {
	fence
	op   string
	text string
}

const maxToken = 256

// number is the OP as central counts it: a later order of a VM has a higher one. 0 where there is none.
func (t token) number() uint64 {
	n, err := strconv.ParseUint(t.op, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

func parseToken(text string) (token, error) {
	bad := api.Invalid(api.HeaderFencing, "%s must be EPOCH.TERM.OP: two whole numbers and the operation's id", api.HeaderFencing)
	if text == "" {
		return token{}, nil
	}
	parts := strings.SplitN(text, ".", 3)
	if len(parts) != 3 || parts[2] == "" || len(text) > maxToken {
		return token{}, bad
	}
	epoch, err1 := strconv.ParseUint(parts[0], 10, 64)
	term, err2 := strconv.ParseUint(parts[1], 10, 64)
	if err1 != nil || err2 != nil || strings.ContainsFunc(parts[2], func(r rune) bool { return r <= 0x20 || r > 0x7e }) {
		return token{}, bad
	}
	return token{fence: fence{Epoch: epoch, Term: term}, op: parts[2], text: text}, nil
}

// fingerprint tells an order on one VM from another: the operation, what is to be done, and how. The leadership
// is left out, as the next leader repeats what the last one left half done. Empty without a token.
func (t token) fingerprint(op string, body []byte) string {
	if t.op == "" {
		return ""
	}
	h := sha256.New()
	for _, part := range [][]byte{[]byte(t.op), []byte(op), body} {
		h.Write([]byte(strconv.Itoa(len(part)) + ":"))
		h.Write(part)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// gate holds the fence. Orders commit under its read lock, so that none commits after a newer leadership has
// been seen.
type gate struct {
	mu   sync.RWMutex
	seen fence
	save func(fence) error
}

// within runs commit unless the token is older than the newest seen; a newer one is saved first.
func (g *gate) within(t token, commit func() error) error {
	if t.text == "" {
		return commit()
	}
	if err := g.raise(t.fence); err != nil {
		return err
	}
	g.mu.RLock()
	defer g.mu.RUnlock()
	if t.older(g.seen) {
		return api.Errorf(api.CodeStaleToken, "the order's fencing token %d.%d is older than %d.%d, which this node has seen; only the present leader may order",
			t.Epoch, t.Term, g.seen.Epoch, g.seen.Term)
	}
	return commit()
}

func (g *gate) raise(f fence) error {
	g.mu.RLock()
	newer := g.seen.older(f)
	g.mu.RUnlock()
	if !newer {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.seen.older(f) {
		return nil
	}
	if err := g.save(f); err != nil {
		return err
	}
	g.seen = f
	return nil
}
