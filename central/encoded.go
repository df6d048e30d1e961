package central

import (
	"encoding/json"
	"strconv"
	"sync"

	"github.com/fluxvm/fluxvm/fsm"
	"github.com/fluxvm/fluxvm/pkg/api"
)

// maxEncoded is how many VMs are kept as JSON, a kilobyte or less each. Beyond that all are encoded anew.
const maxEncoded = 16_384

// encodedVMs keeps VMs as the API shows them. Rows never change, so what was made of one stays right for as long as it is
// the row; a list of thousands is then put together rather than encoded.
type encodedVMs struct {
	mu sync.Mutex
	of map[string]encodedVM // by id
}

type encodedVM struct {
	row *fsm.VM
	raw []byte
}

// vm is the VM as JSON. The caller must not change it.
func (e *encodedVMs) vm(row *fsm.VM) []byte {
	e.mu.Lock()
	have, known := e.of[row.ID]
	e.mu.Unlock()
	if known && have.row == row {
		return have.raw
	}
	raw, err := json.Marshal(wireVM(row))
	if err != nil {
		panic("central: a VM cannot be written as JSON: " + err.Error()) // strings, numbers and times always can
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.of == nil || len(e.of) >= maxEncoded && !known {
		e.of = map[string]encodedVM{}
	}
	e.of[row.ID] = encodedVM{row, raw}
	return raw
}

// joined writes a list of items that are JSON already, as encoding it would.
func joined(list api.List[[]byte]) []byte {
	size := 192
	for _, item := range list.Items {
		size += len(item) + 1
	}
	out := append(make([]byte, 0, size), `{"items":[`...)
	for i, item := range list.Items {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, item...)
	}
	out = append(out, `],"next_cursor":`...)
	if list.NextCursor == nil {
		out = append(out, "null"...)
	} else {
		out = strconv.AppendQuote(out, *list.NextCursor) // base64 has nothing to escape
	}
	return append(out, '}')
}
