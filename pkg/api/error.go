package api

import (
	"fmt"
	"strings"
)

// Code is one of the closed set of error codes. It decides status, exit code and whether a retry can help.
type Code string

// The closed set. A new code is a change of the contract.
const (
	CodeInvalid         Code = "invalid"
	CodeUnauthenticated Code = "unauthenticated"
	CodeForbidden       Code = "forbidden"
	CodePolicyDenied    Code = "policy_denied"
	CodeQuotaExceeded   Code = "quota_exceeded"
	CodeNotFound        Code = "not_found"
	CodeNameTaken       Code = "name_taken"
	CodeConflict        Code = "conflict"
	CodeHostFull        Code = "host_full"
	CodeStaleToken      Code = "stale_token"
	CodeCursorGone      Code = "cursor_gone"
	CodeTooLarge        Code = "too_large"
	CodeKeyReused       Code = "key_reused"
	CodeRateLimited     Code = "rate_limited"
	CodeHostPressure    Code = "host_pressure"
	CodeNoCapacity      Code = "no_capacity"
	CodeNotLeader       Code = "not_leader"
	CodeUnavailable     Code = "unavailable"
	CodeOutcomeUnknown  Code = "outcome_unknown"
	CodeStorageFull     Code = "storage_full"
	CodeInternal        Code = "internal"
)

// codeFacts is the one table from code to HTTP status, title and fluxctl's exit code.
var codeFacts = map[Code]struct {
	status int
	title  string
	exit   int
}{
	CodeInvalid:         {400, "Invalid request", 2},
	CodeHostPressure:    {400, "Host under memory pressure", 5},
	CodeUnauthenticated: {401, "Not authenticated", 4},
	CodeForbidden:       {403, "Not allowed", 4},
	CodePolicyDenied:    {403, "Denied by policy", 4},
	CodeQuotaExceeded:   {403, "Quota exceeded", 4},
	CodeNotFound:        {404, "Not found", 3},
	CodeNameTaken:       {409, "Name taken", 4},
	CodeConflict:        {409, "Conflict", 4},
	CodeHostFull:        {409, "Host full", 4},
	CodeStaleToken:      {409, "Stale fencing token", 4},
	CodeCursorGone:      {410, "Cursor too old", 1},
	CodeTooLarge:        {413, "Too large", 2},
	CodeKeyReused:       {422, "Idempotency key reused", 4},
	CodeRateLimited:     {429, "Too many requests", 5},
	CodeInternal:        {500, "Internal error", 1},
	CodeNoCapacity:      {503, "No capacity", 5},
	CodeNotLeader:       {503, "No leader", 5},
	CodeUnavailable:     {503, "Unavailable", 5},
	CodeOutcomeUnknown:  {504, "Outcome unknown", 5},
	CodeStorageFull:     {507, "Storage full", 5},
}

// Status is the HTTP status that goes with the code; 500 for a code outside the set.
func (c Code) Status() int {
	if f, ok := codeFacts[c]; ok {
		return f.status
	}
	return 500
}

// Title is the code in a few words.
func (c Code) Title() string { return codeFacts[c].title }

// Exit is the exit code fluxctl ends with.
func (c Code) Exit() int {
	if f, ok := codeFacts[c]; ok {
		return f.exit
	}
	return 1
}

// Known says whether the code is one of the closed set.
func (c Code) Known() bool { _, ok := codeFacts[c]; return ok }

// Temporary says whether the same request can succeed later without a change.
func (c Code) Temporary() bool {
	switch c {
	case CodeRateLimited, CodeNotLeader, CodeUnavailable, CodeNoCapacity, CodeStorageFull:
		return true
	}
	return false
}

// The two values of Error.Outcome.
const (
	OutcomeNotApplied = "not_applied" // nothing was changed; the request may be sent again
	OutcomeUnknown    = "unknown"     // the change may or may not have happened; repeat only under the same key
)

// Error is a refusal or failure as it crosses processes: a code and what to change. As JSON it is the body of
// an application/problem+json answer.
type Error struct {
	Type           string         `json:"type"`
	Title          string         `json:"title"`
	Status         int            `json:"status"`
	Detail         string         `json:"detail"`
	Code           Code           `json:"code"`
	RequestID      string         `json:"request_id"`
	Message        string         `json:"error"` // equals detail, for older clients
	Field          string         `json:"field,omitempty"`
	Reasons        map[string]int `json:"reasons,omitempty"` // hosts counted by why they were ruled out
	RetryAfterSecs int            `json:"retry_after_secs,omitempty"`
	Outcome        string         `json:"outcome,omitempty"`
}

// NotFound is the answer for a thing that is not there and for one that the caller may not know of, which read the
// same: what is VM, pool, node, lease, tenant, image or key.
func NotFound(what, name string) *Error {
	return Errorf(CodeNotFound, "there is no %s %s; fluxctl fleet %ss lists them", what, name, strings.ToLower(what))
}

// Errorf makes an error of the code; the text says what to change.
func Errorf(code Code, format string, args ...any) *Error {
	e := &Error{Code: code, Detail: fmt.Sprintf(format, args...)}
	switch code {
	case CodeNotLeader, CodeUnavailable:
		e.Outcome, e.RetryAfterSecs = OutcomeNotApplied, 1
	case CodeRateLimited:
		e.RetryAfterSecs = 1
	case CodeOutcomeUnknown:
		e.Outcome = OutcomeUnknown
	}
	return e
}

// Invalid makes a CodeInvalid error about one field of the request.
func Invalid(field, format string, args ...any) *Error {
	e := Errorf(CodeInvalid, format, args...)
	e.Field = field
	return e
}

// Error gives the code and the detail.
func (e *Error) Error() string { return string(e.Code) + ": " + e.Detail }

// Is makes errors.Is compare by code, so that errors.Is(err, &api.Error{Code: api.CodeNotFound}) works.
func (e *Error) Is(target error) bool {
	other, ok := target.(*Error)
	return ok && other.Code == e.Code
}

// Filled gives a copy with the derived fields of a problem document set.
func (e *Error) Filled(requestID string) *Error {
	out := *e
	out.Type = "https://fluxvm.dev/errors/" + string(e.Code)
	out.Title, out.Status, out.Message, out.RequestID = e.Code.Title(), e.Code.Status(), e.Detail, requestID
	return &out
}
