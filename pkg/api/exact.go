package api

import (
	"encoding/json"
	"reflect"
)

// exact walks a valid JSON object once and says whether it is beyond doubt one that Decode takes: not too deep, no name
// twice, and only the exact names of fields. Reports of hosts come by the hundred a second and nearly all are, so the
// thorough checks, which can say what is wrong and where, are left to the others.
type exact struct {
	raw    []byte
	at     int
	depth  int
	fields map[reflect.Type][]namedField
}

type namedField struct {
	name string
	kind reflect.Type
}

func isExact(raw []byte, t reflect.Type) bool {
	x := exact{raw: raw, fields: map[reflect.Type][]namedField{}}
	x.space()
	return x.at < len(raw) && raw[x.at] == '{' && x.value(t)
}

// value passes over one value that is to become a t; nil is a kind that says nothing of names.
func (x *exact) value(t reflect.Type) bool {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	x.space()
	switch x.raw[x.at] {
	case '{':
		return x.object(t)
	case '[':
		return x.array(t)
	case '"':
		x.text()
	default:
		for x.at < len(x.raw) && !endsLiteral(x.raw[x.at]) {
			x.at++
		}
	}
	return true
}

func (x *exact) object(t reflect.Type) bool {
	fields, elem := []namedField(nil), reflect.Type(nil)
	if t != nil && !reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) {
		switch t.Kind() {
		case reflect.Struct:
			fields = x.fieldsOf(t)
		case reflect.Map:
			elem = t.Elem()
		}
	}
	var seen uint64 // of fields, by their places
	var names map[string]bool
	if fields == nil {
		names = map[string]bool{}
	} else if len(fields) > 64 {
		return false
	}
	if x.depth++; x.depth > MaxDepth {
		return false
	}
	x.at++
	for next := 0; ; next++ {
		if x.space(); x.raw[x.at] == '}' {
			break
		}
		name, plain := x.text()
		if !plain {
			return false
		}
		kind := elem
		if fields != nil {
			if next = place(fields, next, name); next < 0 || seen&(1<<next) != 0 {
				return false
			}
			seen |= 1 << next
			kind = fields[next].kind
		} else {
			if names[string(name)] {
				return false
			}
			names[string(name)] = true
		}
		x.space()
		x.at++ // the colon
		if !x.value(kind) {
			return false
		}
		if x.space(); x.raw[x.at] == ',' {
			x.at++
		}
	}
	x.at++
	x.depth--
	return true
}

// place finds a field by its name, from where it is to be expected on: senders write fields in their order.
func place(fields []namedField, from int, name []byte) int {
	for i := range fields {
		if at := (from + i) % len(fields); fields[at].name == string(name) {
			return at
		}
	}
	return -1
}

func (x *exact) array(t reflect.Type) bool {
	var elem reflect.Type
	if t != nil && (t.Kind() == reflect.Slice || t.Kind() == reflect.Array) && !reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) {
		elem = t.Elem()
	}
	if x.depth++; x.depth > MaxDepth {
		return false
	}
	x.at++
	for {
		if x.space(); x.raw[x.at] == ']' {
			break
		}
		if !x.value(elem) {
			return false
		}
		if x.space(); x.raw[x.at] == ',' {
			x.at++
		}
	}
	x.at++
	x.depth--
	return true
}

// text passes over a string and gives what stands between the quotes; plain is false where that is not what it says.
func (x *exact) text() (inner []byte, plain bool) {
	x.at++
	start := x.at
	plain = true
	for x.raw[x.at] != '"' {
		if c := x.raw[x.at]; c == '\\' {
			plain = false
			x.at++
		} else if c >= 0x80 { // may be broken UTF-8, which is read as something else
			plain = false
		}
		x.at++
	}
	x.at++
	return x.raw[start : x.at-1], plain
}

func (x *exact) space() {
	for x.at < len(x.raw) && (x.raw[x.at] == ' ' || x.raw[x.at] == '\n' || x.raw[x.at] == '\t' || x.raw[x.at] == '\r') {
		x.at++
	}
}

func endsLiteral(c byte) bool {
	switch c {
	case ',', '}', ']', ' ', '\n', '\t', '\r':
		return true
	}
	return false
}

func (x *exact) fieldsOf(t reflect.Type) []namedField {
	if known := x.fields[t]; known != nil {
		return known
	}
	out := make([]namedField, 0, t.NumField())
	eachField(t, func(name string, kind reflect.Type) { out = append(out, namedField{name, kind}) })
	x.fields[t] = out
	return out
}
