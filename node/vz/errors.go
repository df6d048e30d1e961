package vz

import (
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// VZErrorDomain and its codes, as Apple numbers them. host_darwin_arm64.go holds them to the framework's own.
const (
	errorDomain = "VZErrorDomain"

	codeInvalidConfiguration = 2
	codeLimitExceeded        = 6
	codeOutOfDiskSpace       = 8
	codeNotSupported         = 10
)

// posixDomain is that of the system's own errors.
const posixDomain = "NSPOSIXErrorDomain"

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

// Unwrap is the system's error that it stands for, by which errors.Is knows a full disk on either end of the socket.
func (e *FrameworkError) Unwrap() error {
	if e.Domain == posixDomain {
		return syscall.Errno(e.Code)
	}
	return nil
}

// asFrameworkError makes any error one that can cross the socket; nil stays nil.
func asFrameworkError(err error) *FrameworkError {
	var known *FrameworkError
	var number syscall.Errno
	switch {
	case err == nil:
		return nil
	case errors.As(err, &known):
		return known
	case errors.As(err, &number):
		return &FrameworkError{Domain: posixDomain, Code: int(number), Text: err.Error()}
	}
	return &FrameworkError{Text: err.Error()}
}

// explained is the error in the fleet's own words where the framework's number says what is the matter.
func explained(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return diskFull()
	}
	var e *FrameworkError
	if !errors.As(err, &e) || e.Domain != errorDomain {
		return err
	}
	switch e.Code {
	case codeInvalidConfiguration:
		if strings.Contains(e.Text, "entitlement") {
			return fmt.Errorf("fluxvm-agent is not signed as the framework asks for; build it with make build-mac, or sign it as docs/macs.md tells: %w", err)
		}
	case codeLimitExceeded:
		full := api.Errorf(api.CodeHostFull, "%s: the Mac itself says that it runs as many macOS guests as Apple's licence allows, others than FluxVM's counted; end one or use another Mac", api.WhyMacOSLimit)
		full.Reasons = map[string]int{api.WhyMacOSLimit: 1}
		return full
	case codeOutOfDiskSpace:
		return diskFull()
	case codeNotSupported:
		return fmt.Errorf("this version of macOS cannot do it; update the Mac: %w", err)
	}
	return err
}

func diskFull() error {
	return api.Errorf(api.CodeStorageFull, "the Mac's disk is full: free space under the data directory")
}
