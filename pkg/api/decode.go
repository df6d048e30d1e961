package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// MaxBody is the largest request body in bytes.
const MaxBody = 1 << 20

// MaxDepth is how deep arrays and objects of a request may nest.
const MaxDepth = 32

// Decode reads one JSON object into v, strictly: unknown fields, data after it, nesting beyond MaxDepth and
// anything that is no object are refused with CodeInvalid and the position. The refused value is never repeated.
func Decode(raw []byte, v any) error {
	if len(raw) > MaxBody {
		return Errorf(CodeTooLarge, "the body has more than %d bytes; send less", MaxBody)
	}
	if json.Valid(raw) && isExact(raw, reflect.TypeOf(v)) && json.Unmarshal(raw, v) == nil {
		return nil
	}
	if err := checkShape(raw); err != nil {
		return err
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return decodeError(err, dec.InputOffset())
	}
	return checkNames(raw, reflect.TypeOf(v))
}

// checkNames holds an object to the exact names of a struct's fields: encoding/json takes them in any case, so that two
// spellings of one field could say two things. What raw is was decoded before.
func checkNames(raw []byte, t reflect.Type) error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) {
		return nil // it reads in its own way
	}
	switch t.Kind() {
	case reflect.Slice, reflect.Array:
		var items []json.RawMessage
		if json.Unmarshal(raw, &items) != nil {
			return nil
		}
		for _, item := range items {
			if err := checkNames(item, t.Elem()); err != nil {
				return err
			}
		}
	case reflect.Struct:
		var object map[string]json.RawMessage
		if json.Unmarshal(raw, &object) != nil {
			return nil
		}
		fields := fieldsOf(t)
		for _, name := range slices.Sorted(maps.Keys(object)) {
			field, ok := fields[name]
			if !ok {
				return Invalid(name, "unknown field %s; check its spelling, capitals count", shown(name))
			}
			if err := checkNames(object[name], field); err != nil {
				return err
			}
		}
	}
	return nil
}

// fieldsOf are the types of a struct's fields by their names in JSON, those of embedded structs among them.
func fieldsOf(t reflect.Type) map[string]reflect.Type {
	out := map[string]reflect.Type{}
	eachField(t, func(name string, kind reflect.Type) { out[name] = kind })
	return out
}

// eachField gives the fields of a struct that are read from JSON.
func eachField(t reflect.Type, yield func(name string, kind reflect.Type)) {
	give := func(f reflect.StructField) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case !f.IsExported() || f.Anonymous && name == "" || name == "-":
		case name == "":
			yield(f.Name, f.Type)
		default:
			yield(name, f.Type)
		}
	}
	for i := range t.NumField() {
		if t.Field(i).Anonymous {
			for _, f := range reflect.VisibleFields(t) {
				give(f)
			}
			return
		}
	}
	for i := range t.NumField() { // VisibleFields would copy them all
		give(t.Field(i))
	}
}

// level is one open object or array while the tokens are walked.
type level struct {
	names map[string]bool // of an object, those seen so far; nil for an array
	value bool            // the next token belongs to a name
}

// checkShape walks the tokens once: a single object, not too deep, no name twice, nothing after it.
func checkShape(raw []byte) error {
	dec := json.NewDecoder(bytes.NewReader(raw))
	depth, tokens := 0, 0
	var open []level
	for {
		token, err := dec.Token()
		if err == io.EOF {
			if tokens == 0 || depth > 0 {
				return Errorf(CodeInvalid, "the body must be one JSON object; it ends at byte %d", dec.InputOffset())
			}
			return nil
		}
		if err != nil {
			return decodeError(err, dec.InputOffset())
		}
		if err := twice(&open, token, dec.InputOffset()); err != nil {
			return err
		}
		if delim, ok := token.(json.Delim); ok && (delim == '{' || delim == '[') {
			if depth == 0 && delim == '[' {
				return Errorf(CodeInvalid, "the body must be a JSON object, not an array")
			}
			if depth == 0 && tokens > 0 {
				return Errorf(CodeInvalid, "the body must be one JSON object; more data begins at byte %d", dec.InputOffset())
			}
			if depth++; depth > MaxDepth {
				return Errorf(CodeInvalid, "the body nests deeper than %d levels at byte %d", MaxDepth, dec.InputOffset())
			}
		} else if ok {
			depth--
		} else if depth == 0 {
			return Errorf(CodeInvalid, "the body must be one JSON object; something else stands at byte %d", dec.InputOffset())
		}
		tokens++
	}
}

// twice refuses a name that an object has already: readers differ in which of the two counts.
func twice(open *[]level, token json.Token, at int64) error {
	n := len(*open)
	delim, isDelim := token.(json.Delim)
	if isDelim && (delim == '}' || delim == ']') {
		*open = (*open)[:max(0, n-1)]
		return nil
	}
	if n > 0 && (*open)[n-1].names != nil {
		here := &(*open)[n-1]
		if name, ok := token.(string); ok && !here.value {
			if here.names[name] {
				return Invalid(name, "the field %s is there twice, the second time before byte %d; give it once", shown(name), at)
			}
			here.names[name], here.value = true, true
			return nil
		}
		here.value = false
	}
	if isDelim {
		one := level{}
		if delim == '{' {
			one.names = map[string]bool{}
		}
		*open = append(*open, one)
	}
	return nil
}

func decodeError(err error, at int64) error {
	var api *Error
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &api):
		return api
	case errors.As(err, &kind):
		return Invalid(kind.Field, "%s must be %s (byte %d)", orBody(kind.Field), jsonKind(kind.Type.Kind().String()), kind.Offset)
	case errors.As(err, &syntax):
		return Errorf(CodeInvalid, "the body is not JSON: byte %d cannot stand there", syntax.Offset)
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return Errorf(CodeInvalid, "the body is not JSON: it ends too early, at byte %d", at)
	}
	if name, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		name = strings.Trim(name, `"`)
		return Invalid(name, "unknown field %q before byte %d; check its spelling", name, at)
	}
	return Errorf(CodeInvalid, "the body cannot be read before byte %d: a value has the wrong form", at)
}

func orBody(field string) string {
	if field == "" {
		return "the body"
	}
	return field
}

func jsonKind(kind string) string {
	switch {
	case strings.HasPrefix(kind, "int"), strings.HasPrefix(kind, "uint"):
		return "a whole number"
	case kind == "string":
		return "text"
	case kind == "bool":
		return "true or false"
	case kind == "slice", kind == "array":
		return "a list"
	case kind == "map", kind == "struct", kind == "ptr":
		return "an object"
	}
	return "of another kind"
}

// Optional is a field of a merge patch: absent, null, or a value.
type Optional[V any] struct {
	Set  bool // the field was there
	Null bool // it was null
	V    V    // its value unless null
}

// UnmarshalJSON notes that the field was there.
func (o *Optional[V]) UnmarshalJSON(raw []byte) error {
	o.Set = true
	if string(raw) == "null" {
		o.Null = true
		return nil
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	return dec.Decode(&o.V)
}

// MarshalJSON writes the value or null. An absent one is left out by `omitzero`.
func (o Optional[V]) MarshalJSON() ([]byte, error) {
	if !o.Set || o.Null {
		return []byte("null"), nil
	}
	return json.Marshal(o.V)
}

// OrNil is the value of a field that is there and not null.
func (o Optional[V]) OrNil() *V {
	if !o.Set || o.Null {
		return nil
	}
	return &o.V
}

// IsZero says that the field was absent.
func (o Optional[V]) IsZero() bool { return !o.Set }

// Some is a present value.
func Some[V any](v V) Optional[V] { return Optional[V]{Set: true, V: v} }

// Null is a present null.
func Null[V any]() Optional[V] { return Optional[V]{Set: true, Null: true} }

// String shows the value for messages and logs.
func (o Optional[V]) String() string {
	switch {
	case !o.Set:
		return "unset"
	case o.Null:
		return "null"
	}
	return fmt.Sprint(o.V)
}
