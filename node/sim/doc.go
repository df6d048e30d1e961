// Package sim is the driver that runs no VM at all. Its machines are times: when they were started, how long they
// take to boot, when their agent answers, and what goes wrong, all told by the image's name. It also makes the
// host around it misbehave on order (GET and PATCH /v1/sim) and lists what the host was ordered to do, so that
// tests can hold central to it.
//
// It is never chosen by "auto": whoever wants VMs that are not real says so. The daemon calls it like any other
// driver and, through the daemon's own interface for steering, from the API.
package sim
