// Package runners gives each queued job of GitHub Actions a VM of its own (fluxvm-agent gha-runners). It is a client of
// the fleet's API and of GitHub's, and keeps no state: what it has begun is told by the labels of its VMs and by the
// runners that GitHub lists, so it may end and start again at any time. plan decides, Scaler carries out. It refuses to
// know how VMs are made: that is the fleet's.
package runners
