// Command fluxctl is the command line of FluxVM fleet. It owns the process: streams, signals and exit code; what
// the commands do and say is pkg/cli's.
package main
