package vz

import (
	"errors"
	"fmt"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// VZErrorDomain and its codes, as Apple numbers them.
const (
	errorDomain = "VZErrorDomain"

	codeLimitExceeded  = 6
	codeOutOfDiskSpace = 8
	codeNotSupported   = 10
)

// FrameworkError is an NSError of the framework. It crosses the helper's socket as it is.
type FrameworkError struct {
	Domain string `json:"domain,omitempty"`
	Code   int    `json:"code,omitempty"`
	Text   string `json:"text"`
}

func (e *FrameworkError) Error() string {
	if e.Domain == "" {
		return e.Text
	}
	return fmt.Sprintf("%s (%s %d)", e.Text, e.Domain, e.Code)
}

// asFrameworkError makes any error one that can cross the socket; nil stays nil.
func asFrameworkError(err error) *FrameworkError {
	var known *FrameworkError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &known):
		return known
	}
	return &FrameworkError{Text: err.Error()}
}

// explained is the error in the fleet's own words where the framework's number says what is the matter.
func explained(err error) error {
	var e *FrameworkError
	if !errors.As(err, &e) || e.Domain != errorDomain {
		return err
	}
	switch e.Code {
	case codeLimitExceeded:
		full := api.Errorf(api.CodeHostFull, "%s: the Mac itself says that it runs as many macOS guests as Apple's licence allows, others than FluxVM's counted; end one or use another Mac", api.WhyMacOSLimit)
		full.Reasons = map[string]int{api.WhyMacOSLimit: 1}
		return full
	case codeOutOfDiskSpace:
		return api.Errorf(api.CodeStorageFull, "the Mac's disk is full: free space under the data directory")
	case codeNotSupported:
		return fmt.Errorf("this version of macOS cannot do it; update the Mac: %w", err)
	}
	return err
}
