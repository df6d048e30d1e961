// Package console holds the fleet's web page and serves it under Path: the files that make console built into dist,
// or, in a program built without them, one page that says how to build them.
//
// It knows nothing of the fleet. The page speaks the public API like any other client, with a token that it is given
// at sign-in; every header that keeps it to that is set here. Package central mounts the handler on every replica.
package console
