// Package layout holds the repository to the rules of docs/architecture.md: who may import whom, what the state
// machine may not do, how large and how named things are. The rules are tests only; each names its reason when it
// fails, and each is itself proved by a planted violation.
//
// It refuses to judge what a linter judges: style, vetting and formatting are golangci-lint's and gofmt's.
package layout
