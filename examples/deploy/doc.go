// Package deploy holds what init systems and Apple's codesign need to know of FluxVM, as files that people can copy and
// that "fluxctl service" and the packages install. It has no code of its own.
package deploy

import "embed"

// Files are the units of systemd and the property lists of launchd, by name.
//
//go:embed *.service *.plist
var Files embed.FS
