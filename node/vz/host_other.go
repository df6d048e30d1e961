//go:build !(darwin && arm64 && cgo)

package vz

import (
	"errors"
	"runtime"
)

// Host is the framework of this Mac with the limits of its guests. In a program that cannot have it: why.
func Host() (Framework, Limits, error) {
	if runtime.GOOS == "darwin" {
		return nil, Limits{}, errors.New("this program was built without Apple's Virtualization framework; build it on a Mac with Apple silicon: make build-mac")
	}
	return nil, Limits{}, errors.New("vz needs a Mac with Apple silicon")
}
