// Package nft reads the objects of nftables over netlink, as raw messages: rules of other programs
// may have expressions that no library supports.
package nft
