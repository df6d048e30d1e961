package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
	if err := checkShape(raw); err != nil {
		return err
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return decodeError(err, dec.InputOffset())
	}
	return nil
}

// checkShape walks the tokens once: a single object, not too deep, nothing after it.
func checkShape(raw []byte) error {
	dec := json.NewDecoder(bytes.NewReader(raw))
	depth, tokens := 0, 0
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
