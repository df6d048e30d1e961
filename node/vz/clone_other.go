//go:build !darwin

package vz

// clone copies: only a Mac has clonefile, and only tests come here.
func clone(from, to string) error { return copyFile(from, to) }
